"""Tests of scripts/circles.py, which refuses files that import each other in a circle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The script needs ast-grep, which make test does not install.
pytestmark = pytest.mark.verify

ROOT = Path(__file__).resolve().parent.parent.parent
RUST = {"lib.rs": "mod a;\nmod b;\npub use a::A;", "a.rs": "use crate::b::B;\npub struct A;", "b.rs": "pub struct B;"}


def circles(directory: Path, files: dict[str, str], *options: str) -> str:
    """Return what the check prints about these files."""
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    check = subprocess.run(
        [sys.executable, ROOT / "scripts" / "circles.py", *options, directory],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert check.returncode == (1 if check.stdout else 0)
    return check.stdout.replace(f"{directory}/", "")


@pytest.mark.parametrize(
    "text",
    [
        "use crate::a::A;",
        "use super::a::{self, A};",
        "use {crate::{a::{A as Renamed}}, std::mem};",
        "use crate::A;",
        "use crate::a;\nfn f(_: a::A) {}",
        "fn f() -> Option<super::a::A> { None }",
        'fn f() { println!("{:?}", crate::a::A) }',
        "mod inner { use super::super::a::A; }",
        "#[cfg(unix)]\nuse crate::a::A;",
        "#[cfg(not(test))]\nuse crate::a::A;",
    ],
)
def test_a_circle_of_rust_files_is_refused_with_the_imported_names(tmp_path: Path, text: str) -> None:
    assert circles(tmp_path, {**RUST, "b.rs": f"{text}\npub struct B;"}) == (
        "circles: 2 files import each other in a circle:\n  a.rs imports B from b.rs\n  b.rs imports A from a.rs\n"
    )


def test_glob_imports_in_both_directions_are_a_circle(tmp_path: Path) -> None:
    files = {"lib.rs": "mod a;", "a.rs": "mod child;\nuse child::*;", "a/child.rs": "use super::*;"}
    assert circles(tmp_path, files) == (
        "circles: 2 files import each other in a circle:\n"
        "  a/child.rs imports * from a.rs\n  a.rs imports * from a/child.rs\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "use other::a::A;",
        "// use crate::a::A;",
        'const TEXT: &str = "crate::a::A";',
        "pub use crate::a::A;",
        "mod inner { use super::B; }",
        "#[cfg(test)]\nuse crate::a::A;",
        "#[cfg(test)]\n#[allow(dead_code)]\nmod checks { use crate::a::A; }",
        "#[cfg(all(test, unix))]\nmod tests;",
    ],
)
def test_a_rust_file_may_name_the_other_in_tests_and_texts(tmp_path: Path, text: str) -> None:
    files = {"b.rs": f"{text}\npub struct B;", "b/tests.rs": "use crate::a::A;"}
    assert circles(tmp_path, {**RUST, **files}) == ""


def test_a_module_and_its_child_are_two_files(tmp_path: Path) -> None:
    files = {"lib.rs": "mod a;", "a.rs": "mod child;\nfn f() { child::g() }", "a/child.rs": "use super::f;"}
    assert "  a/child.rs imports f from a.rs\n" in circles(tmp_path, files)
    assert circles(tmp_path, {**files, "a/child.rs": "pub fn g() {}"}) == ""


def test_two_directories_cannot_import_from_each_other(tmp_path: Path) -> None:
    files = {"lib.rs": "mod high;\nmod low;", "high/mod.rs": "mod a;\npub mod b;", "high/a.rs": "use crate::low::c::C;"}
    files |= {"high/b.rs": "pub struct B;", "low/mod.rs": "pub mod c;\nmod d;", "low/c.rs": "pub struct C;"}
    assert circles(tmp_path, {**files, "low/d.rs": "use crate::high::b::B;"}) == (
        "circles: 2 layers import each other in a circle:\n  high imports C from low\n  low imports B from high\n"
    )
    assert circles(tmp_path, {**files, "low/d.rs": "use super::c::C;"}) == ""


def test_circle_of_files_does_not_hide_a_circle_of_layers(tmp_path: Path) -> None:
    files = {"lib.rs": "mod high;\nmod low;", "high/mod.rs": "mod a;\npub mod b;", "low/mod.rs": "pub mod c;\nmod d;"}
    files |= {"high/a.rs": "use crate::low::c::C;\nuse super::b::B;\npub struct A;", "low/c.rs": "pub struct C;"}
    files |= {"high/b.rs": "use super::a::A;\npub struct B;", "low/d.rs": "use crate::high::b::B;"}
    assert circles(tmp_path, files).splitlines()[::3] == [
        "circles: 2 files import each other in a circle:",
        "circles: 2 layers import each other in a circle:",
    ]


@pytest.mark.parametrize(
    "order", ["| top: `a.rs`, `b.rs` |", "| top: `a.rs` | x |\n| low: `b.rs` | y |", "| top: `a.rs` |\n| `b.rs` |"]
)
def test_a_file_may_import_only_the_files_that_the_page_lists_after_it(tmp_path: Path, order: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(order)
    assert circles(tmp_path, RUST, f"--order={page}") == ""
    page.write_text(order.translate(str.maketrans("ab", "ba")))
    assert circles(tmp_path, RUST, f"--order={page}") == (
        "circles: a.rs imports B from b.rs, which page.md lists before it\n"
    )


def test_the_page_may_list_the_files_of_a_directory(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| one: `b.rs` in `low/` | x |\n| two: `a/` in `low/` | y |\n")
    files = {
        "lib.rs": "mod low;",
        "low/mod.rs": "mod a;\nmod b;",
        "low/b.rs": "pub struct B;",
        "low/a/mod.rs": "mod c;",
    }
    (tmp_path / "low" / "a").mkdir(parents=True)
    assert circles(tmp_path, {**files, "low/a/c.rs": "use crate::low::b::B;"}, f"--order={page}") == (
        "circles: low/a/c.rs imports B from low/b.rs, which page.md lists before it\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.b import B",
        "from . import b",
        "import pack.b",
    ],
)
def test_a_circle_of_python_files_is_refused(tmp_path: Path, text: str) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    files = {"__init__.py": "", "a.py": text, "b.py": "from pack.c import C", "c.py": "from pack.a import f as g"}
    printed = circles(package, files)
    assert printed.startswith("circles: 3 files import each other in a circle:\n  a.py imports ")
    assert printed.endswith("  b.py imports C from c.py\n  c.py imports f from a.py\n")
    assert circles(package, {**files, "c.py": "C = 1"}) == ""
