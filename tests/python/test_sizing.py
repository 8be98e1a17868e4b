"""The claims of the page on sizing about several ensembles hold for its sample."""

from __future__ import annotations

from documentation import DOCS, blocks


def test_locks_are_spread_over_ensembles_as_the_page_on_sizing_says() -> None:
    [sample] = [block.text for block in blocks((DOCS / "sizing.md").read_text()) if block.language == "python"]
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
