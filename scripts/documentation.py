"""Functions that read Markdown for the documentation tools: fences, headings and links, as GitHub and mdBook do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
#: Pages of the documentation that are not in docs/.
BESIDE = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bindings/go/README.md",
    "examples/README.md",
    "python/README.md",
    "scripts/README.md",
    "standalone/README.md",
    "tests/README.md",
]

FENCE = re.compile(r"^( *)(`{3,})(.*)$")
HEADING = re.compile(r"^(#{1,6}) +(.*?) *#* *$")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
MARKER = re.compile(r"^<!-- sample: (.*) -->$")


class Block(NamedTuple):
    """A fenced block of code, with the marker on the line before it, if it has one."""

    line: int
    language: str
    text: str
    marker: str


class Link(NamedTuple):
    """A link and its line number."""

    line: int
    target: str


def pages() -> list[Path]:
    """Return all pages of the documentation."""
    return sorted(DOCS.rglob("*.md")) + [ROOT / name for name in BESIDE]


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page. Their text does not include the indentation of the fence."""
    lines = iter(enumerate(text.splitlines(), 1))
    before = ""
    for number, line in lines:
        if opening := FENCE.match(line):
            indent, fence, language = opening.groups()
            inside = []
            for _, content in lines:
                if content.strip() == fence:
                    break
                inside.append(content.removeprefix(indent))
            else:
                raise ValueError(f"line {number}: the code block has no end")
            marker = MARKER.match(before.strip())
            yield Block(number, language.strip(), "\n".join(inside) + "\n", marker[1] if marker else "")
        before = line


def prose(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each line with its number, and whether it is prose, that is, outside fences."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            yield number, line, False
            fence = "" if line.strip() == fence else fence
        elif mark:
            fence = mark[2]
            yield number, line, False
        else:
            yield number, line, True


def links(text: str) -> Iterator[Link]:
    """Yield the links in the prose of a page, except in inline code and comments."""
    for number, line, is_prose in prose(text):
        if is_prose:
            for found in LINK.finditer(re.sub(r"`[^`]*`|<!--.*?-->", lambda code: "x" * len(code[0]), line)):
                yield Link(number, found[2])


def anchors(text: str) -> set[str]:
    """Return the anchors of a page, which a link can contain after #."""
    seen: dict[str, int] = {}
    found = set()
    for _, line, is_prose in prose(text):
        if is_prose and (heading := HEADING.match(line)):
            slug = slug_of(heading[2])
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
        if is_prose:
            found.update(re.findall(r'<a id="([^"]+)"></a>', line))
    return found


def slug_of(heading: str) -> str:
    """Return the anchor of a heading: letters, digits, - and _ of its text, in lower case, with dashes for spaces."""
    text = LINK.sub(lambda link: link[1], heading).replace("`", "").replace("*", "")
    return "".join(c for c in text.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def title_of(text: str) -> str:
    """Return the first heading of a page."""
    return next((match[2] for _, line, is_prose in prose(text) if is_prose and (match := HEADING.match(line))), "")


def grouped(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Yield the paragraphs and the indented samples of a comment or a docstring. Samples keep their empty lines."""
    group: list[str] = []
    is_sample = False
    for line in [*lines, "", "end"]:
        if not line.strip():
            if group and not is_sample:
                yield False, group
                group = []
            elif group:
                group.append("")
            continue
        if group and line.startswith("    ") != is_sample:
            yield is_sample, "\n".join(group).rstrip().splitlines()
            group = []
        is_sample = line.startswith("    ")
        group.append(line)
