"""Tests of `make demo`, on the server that it starts and on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from server import ZooKeeper

DEMO = Path(__file__).parents[2] / "scripts/demo.py"


@pytest.mark.parametrize("kind", ["standalone", "real"])
def test_the_demo(server: ZooKeeper, kind: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ZKLOCK_SERVERS"}
    if kind == "real":
        environment["ZKLOCK_SERVERS"] = server.address
    command = [sys.executable, "-W", "error", str(DEMO)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    holds = re.findall(r"^ +[\d.]+ +[\d.]+  (C|Python) +held with token (\d+)$", done.stdout, re.MULTILINE)
    assert len(holds) == 10
    assert "demo: 10 holds, 0 overlaps" in done.stdout
    assert ("ZKLOCK_SERVERS=host:2181 make demo" in done.stdout) is (kind == "standalone")
