"""The tours in the README and in the package's own documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import zklock
from server import ZooKeeper

README = Path(__file__).parents[2] / "README.md"


def samples(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_tour_of_the_readme_runs(server: ZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    [sample] = samples(README.read_text())
    assert '"localhost:2181"' in sample
    exec(compile(sample.replace("localhost:2181", server.address), str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("mine; the store may refuse anything older than ")
    assert zklock.__version__ == "0.1.0"
