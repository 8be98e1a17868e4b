#!/usr/bin/env python3
"""Writes the reference pages, docs/reference, from what documents each call: the headers, and the Python package.

`reference.py` writes them, `reference.py --check` says which of them are out of date. A C function that belongs to no
theme is an error: whoever adds one says where a reader would look for it (reference_c.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import reference_c
import reference_cpp
import reference_python
from documentation import DOCS, ROOT

PAGES: dict[str, Callable[[], str]] = {
    "c.md": lambda: reference_c.page(
        "C reference",
        ROOT / "include/zklock.h",
        reference_c.CLIENT_THEMES,
        "Programs link `-lzklock`; [first steps](../first-steps/c.md) has how to get it.\n"
        "What each status means, and what to do about it, stands in [errors](../errors.md).",
    ),
    "standalone.md": lambda: reference_c.page(
        "C reference of the standalone server",
        ROOT / "include/zklock_standalone.h",
        reference_c.STANDALONE_THEMES,
        "Programs link `-lzklock_standalone`; [the server's own page](../../standalone/README.md) tells what it is\n"
        "good for.",
    ),
    "cpp.md": reference_cpp.page,
    "python.md": reference_python.page,
}


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit("usage: reference.py [--check]")
    late = [name for name, make in PAGES.items() if not up_to_date(DOCS / "reference" / name, make(), check)]
    if late:
        sys.exit(f"reference: out of date: {', '.join(late)}: make reference")


def up_to_date(file: Path, made: str, check: bool) -> bool:
    if not check:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made)
    return file.exists() and file.read_text() == made


if __name__ == "__main__":
    main()
