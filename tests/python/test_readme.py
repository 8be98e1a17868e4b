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


def test_locks_are_spread_over_ensembles_as_the_page_on_sizing_says() -> None:
    [sample] = samples((README.parent / "docs" / "sizing.md").read_text())
    page: dict[str, object] = {}
    exec(compile(sample, "sizing.md", "exec"), page)
    ensemble_of = page["ensemble_of"]
    assert callable(ensemble_of)
    paths = [f"/locks/{number}" for number in range(3000)]
    two, three = ["a:1", "b:1"], ["c:1", "b:1", "a:1"]
    before, after = [[ensemble_of(path, names) for path in paths] for names in (two, three)]
    assert before == [ensemble_of(path, two[::-1]) for path in paths]
    moved = [(old, new) for old, new in zip(before, after) if old != new]
    assert {new for _, new in moved} == {"c:1"}
    assert 850 < len(moved) < 1150
    assert 1400 < before.count("a:1") < 1600
