"""Checks of the documentation: links work, all pages are reachable, and the reference is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import reference
from documentation import BESIDE, DOCS, ROOT, anchors, links, pages, prose, title_of

import zklock

PAGES = pages()
SUMMARY = DOCS / "SUMMARY.md"
#: The pages of the reference, which only the site has.
REFERENCE = {page.name: text for page, text in reference.pages().items()}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page.read_text()):
        target, _, anchor = link.target.partition("#")
        where = f"{name(page)}:{link.line}: {link.target}"
        if "://" in target:
            assert target.startswith("https://"), where
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.is_file(), where
        assert there.is_relative_to(ROOT), where
        if anchor:
            assert there.suffix == ".md", where
            assert anchor in anchors(there.read_text()), where


def test_every_page_is_in_the_summary_once() -> None:
    listed = [(DOCS / link.target).resolve() for link in links(SUMMARY.read_text())]
    assert len(listed) == len(set(listed))
    assert set(listed) == {page for page in PAGES if page not in (SUMMARY, ROOT / "README.md")}


@pytest.mark.parametrize("page", [page for page in PAGES if page != SUMMARY], ids=name)
def test_a_page_is_plain_markdown_with_one_title(page: Path) -> None:
    text = page.read_text()
    titles = [line for _, line, is_prose in prose(text) if is_prose and line.startswith("# ")]
    assert titles == [f"# {title_of(text)}"]
    before = ""
    for number, line, is_prose in prose(text):
        # An indented block would have no language, and so no test. Only the continuation of a list item may be
        # indented.
        assert not (is_prose and line.startswith("    ") and not before.strip()), (
            f"{name(page)}:{number}: fence this block"
        )
        before = line if is_prose else "fence"
    assert not re.search(r"!\[[^]]*\]\(https?:", text), f"{name(page)} would fetch a picture"


@pytest.mark.parametrize(("library", "page"), [("libzklock", "c.md"), ("libzklock_standalone", "standalone.md")])
def test_the_reference_has_every_function(library: str, page: str) -> None:
    functions = set((ROOT / f"abi/{library}.symbols").read_text().split())
    assert len(functions) > 10
    assert functions <= anchors(REFERENCE[page])


def test_the_reference_has_every_class() -> None:
    cpp, python = (anchors(REFERENCE[page]) for page in ("cpp.md", "python.md"))
    header = (ROOT / "include/zklock.hpp").read_text()
    public = re.sub(r"^namespace detail \{$.*?^\} // namespace detail$", "", header, flags=re.MULTILINE | re.DOTALL)
    classes = re.findall(r"^(?:class|struct|enum class) (?:\[\[.*?\]\] )?(\w+)\b(?![;:]:?)", public, re.MULTILINE)
    assert {"client", "mutex", "semaphore", "error", "state"} <= set(classes)
    assert {f"zkl{name}" for name in classes} <= cpp
    things = {name.lower(): getattr(zklock, name) for name in zklock.__all__}
    # The exceptions are in a table.
    named = {name for name, thing in things.items() if isinstance(thing, type) and not issubclass(thing, Exception)}
    assert {f"zklock{name}" for name in named} <= python


def test_each_status_has_a_row_on_the_page_of_errors() -> None:
    statuses = re.findall(r"^#define ZKL_E_(\w+) ", (ROOT / "include/zklock.h").read_text(), re.MULTILINE)
    rows = re.findall(r"^\| `([A-Z_]+)`", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert rows == statuses


def test_the_changelog_has_this_version() -> None:
    match = re.search(r'^\[workspace\.package\]\nversion = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert match is not None
    versions = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[:1] == [match[1]] or versions[:2] == ["Unreleased", match[1]]


def test_contributing_is_one_screen() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.splitlines()) <= 60


def test_pages_beside_the_docs_are_there() -> None:
    assert all((ROOT / page).is_file() for page in BESIDE)
