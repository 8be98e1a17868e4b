#!/usr/bin/env python3
"""Write the docstrings of the native module into its stub, where editors read them. Run it after a build.

The texts come from the doc comments in python/src. A test compares both.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

ROOT = Path(__file__).parents[1]
STUB = ROOT / "python/zklock/_zklock.pyi"
WIDTH = 120
Definition = Union[ast.ClassDef, ast.FunctionDef]


def definitions(tree: ast.Module) -> Iterator[tuple[Definition, str]]:
    """Yield each definition of the stub that has a docstring in the native module, with that docstring."""
    from zklock import _zklock

    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and hasattr(_zklock, node.name):
            thing = getattr(_zklock, node.name)
            yield from documented(node, thing)
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and member.name in vars(thing):
                        yield from documented(member, getattr(thing, member.name))


def documented(node: Definition, thing: Any) -> Iterator[tuple[Definition, str]]:
    is_slot = node.name.startswith("__") and node.name not in ("__enter__", "__exit__")
    text = None if is_slot else inspect.getdoc(thing)
    if text:
        yield node, text


def words(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def wrapped(text: str, indent: str) -> str:
    """Format a docstring for the source: paragraphs are filled, list items and samples keep their indentation."""
    lines: list[str] = []
    for block in text.split("\n\n"):
        if block.startswith(" "):
            lines += block.splitlines()
        else:
            for item in block.replace("\n* ", "\n\0* ").split("\n\0"):
                hanging = "  " if item.startswith("* ") else ""
                lines += textwrap.wrap(
                    words(item),
                    WIDTH - len(indent) - 6,
                    subsequent_indent=hanging,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        lines.append("")
    lines.pop()
    if len(lines) == 1:
        return f'{indent}"""{lines[0]}"""'
    body = "\n".join(f"{indent}{line}".rstrip() for line in [f'"""{lines[0]}', *lines[1:]])
    return f'{body}\n{indent}"""'


def written() -> str:
    """Return the stub with the docstrings."""
    source = STUB.read_text()
    lines = source.splitlines()
    for node, text in sorted(definitions(ast.parse(source)), key=lambda found: -found[0].lineno):
        first = node.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        docstring = wrapped(text.replace("\\", "\\\\"), " " * (node.col_offset + 4))
        assert first.end_lineno is not None
        if is_text:
            # The docstring is on the line of the signature or below it.
            head = lines[first.lineno - 1][: first.col_offset].rstrip()
            lines[first.lineno - 1 : first.end_lineno] = [*([head] if head else []), docstring]
        else:
            lines[first.lineno - 1 - decorators(first) : first.lineno - 1 - decorators(first)] = [docstring]
    return "\n".join(lines) + "\n"


def decorators(node: ast.stmt) -> int:
    """Return the number of lines above a definition that its decorators take."""
    marks = getattr(node, "decorator_list", [])
    return node.lineno - min(mark.lineno for mark in marks) if marks else 0


def main() -> None:
    STUB.write_text(written())
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(STUB)], check=True)


if __name__ == "__main__":
    main()
