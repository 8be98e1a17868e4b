#!/usr/bin/env python3
"""Write the docstrings of the native module into its stub, where editors read them, and into zklock.aio. Run it after a
build.

The texts come from the doc comments in python/src. A test compares the docstrings with them.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Union

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python/zklock"
STUB = PACKAGE / "_zklock.pyi"
AIO = [PACKAGE / "aio" / name for name in ("_client.py", "_locks.py", "_semaphore.py")]
WIDTH = 120
Definition = Union[ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef]

# What differs between a blocking call and a coroutine, in this order.
TO_ASYNCIO = [
    (
        "Ctrl-C interrupts the wait for the confirmation, but does not undo the release.",
        "If the task is cancelled during the wait, the library completes the release.",
    ),
    ("If Ctrl-C interrupts the call", "If the task is cancelled during the wait"),
    (", and Ctrl-C interrupts the call", ""),
    (r"[^.]*Ctrl-C[^.]*\.", ""),
    (r"In a callback, the call raises Deadlock unless the timeout is 0\.", ""),
    (r"Does not block\.", ""),
    ("does not block, because", "does not wait, because"),
    ("blocks for at most", "waits for at most"),
    ("a ``with``", "an ``with``"),
    ("``with``", "``async with``"),
    ("calling thread", "current task"),
    (r"\bthread", "task"),
    (r"(?<=\S) +", " "),
    (" +$", ""),
]
# Classes and members of zklock.aio with a docstring of their own. All others have the docstring of the blocking class.
OWN = {
    "Client",
    "Client.close",
    "Client.from_file",
    "Client.on_event",
    "Client.semaphore",
    "Hold",
    "Hold.once_per",
    "Lock",
    "Lock.acquire",
    "Lock.hold",
    "Lock.is_held",
    "Lock.on_lost",
    "Lock.set_revocable",
    "Lock.try_hold",
    "Lock.wait_lost",
    "Semaphore",
    "Semaphore.acquire",
}


def definitions(file: Path, tree: ast.Module) -> Iterator[tuple[Definition, str]]:
    """Yield each definition of a file that has its docstring from the native module, with that docstring."""
    from zklock import _zklock

    is_aio = file in AIO
    for node in tree.body:
        thing = getattr(_zklock, getattr(node, "name", ""), None)
        if thing is None or not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        members = node.body if isinstance(node, ast.ClassDef) else []
        for name, part, source in [
            (node.name, node, thing),
            *(
                (f"{node.name}.{member.name}", member, getattr(thing, member.name))
                for member in members
                if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and member.name in vars(thing)
            ),
        ]:
            is_slot = part.name.startswith("__") and part.name not in ("__enter__", "__exit__")
            text = None if is_slot else inspect.getdoc(source)
            if text and not (is_aio and name in OWN):
                yield part, asyncio_text(text) if is_aio else text


def asyncio_text(text: str) -> str:
    """Return the docstring of a coroutine from the docstring of the blocking call."""
    blocks = []
    for block in text.split("\n\n"):
        if not block.startswith(" "):
            block = words(block)
            for old, new in TO_ASYNCIO:
                block = re.sub(old, new, block)
            block = block.strip()
        blocks.append(block)
    return "\n\n".join(block for block in blocks if block)


def words(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def wrapped(text: str, indent: str) -> str:
    """Format a docstring for the source: paragraphs are filled, list items and samples keep their indentation."""
    lines: list[str] = []
    for block in f'"""{text}'.split("\n\n"):
        if block.startswith(" "):
            lines += block.splitlines()
        else:
            for item in block.replace("\n* ", "\n\0* ").split("\n\0"):
                hanging = "  " if item.startswith("* ") else ""
                lines += textwrap.wrap(
                    words(item),
                    WIDTH - len(indent),
                    subsequent_indent=hanging,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        lines.append("")
    lines.pop()
    if len(lines) == 1:
        lines = textwrap.wrap(lines[0], WIDTH - len(indent) - 3)  # leave room for the quotes at the end
    if len(lines) == 1:
        return f'{indent}{lines[0]}"""'
    body = "\n".join(f"{indent}{line}".rstrip() for line in lines)
    return f'{body}\n{indent}"""'


def written(file: Path) -> str:
    """Return a file with its docstrings."""
    source = file.read_text()
    lines = source.splitlines()
    for node, text in sorted(definitions(file, ast.parse(source)), key=lambda found: -found[0].lineno):
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
    for file in (STUB, *AIO):
        file.write_text(written(file))
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(file)], check=True)


if __name__ == "__main__":
    main()
