"""The reference page of a C header: its sections, declarations and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from documentation import grouped, slug_of


class Item(NamedTuple):
    """A declaration of a header, with its comment."""

    name: str
    kind: str
    code: str
    comment: list[str]


class Section(NamedTuple):
    """A section of the header, which becomes a chapter of the page."""

    title: str
    introduction: str
    items: list[Item]


def page(title: str, header: Path, introduction: str) -> str:
    """Return the whole page."""
    text = header.read_text()
    sections = list(read(text))
    anchors = {
        item.name: slug_of(item.name) for section in sections for item in section.items if item.kind != "constant"
    }
    parts = [
        f"# {title}",
        f"This page is made from the comments of [`{header.name}`](../../include/{header.name}). {introduction}",
        *opening(text, anchors),
        "## Overview",
        *(f"- **[{name}](#{slug_of(name)})**: " + ", ".join(index(items)) for name, _, items in sections),
    ]
    for section in sections:
        said = re.sub(r"docs/([\w-]+\.md)", r"[docs/\1](../\1)", section.introduction)
        parts += [f"## {section.title}", said, *chapter(section.items, anchors)]
    return joined(parts)


def joined(parts: list[str]) -> str:
    """Join paragraphs with empty lines between them, except between the items of a list."""
    text = ""
    for part in parts:
        text += ("\n" if part.startswith("- ") and text.rsplit("\n", 1)[-1].startswith("- ") else "\n\n") + part
    return text.lstrip("\n") + "\n"


def read(text: str) -> Iterator[Section]:
    """Yield the sections of the header. A section begins with a line such as `/* ==== Locks ====`."""
    for section in text.split("/* ==== ")[1:]:
        title, _, body = section.partition(" ====\n")
        introduction, _, body = body.partition(" */\n")
        yield Section(title, " ".join(introduction.replace("\n *", " ").split()).lstrip("* "), list(items_of(body)))


def items_of(body: str) -> Iterator[Item]:
    """Yield the declarations of a section."""
    for found in re.finditer(r"^/\*\*(.*?)\*/\n(.*?)(?=^/\*\*|^#ifdef|\Z)", body, re.MULTILINE | re.DOTALL):
        comment = [re.sub(r"^ ?\* ?", "", line).rstrip() for line in found[1].strip("\n").splitlines()]
        comment = [line.strip() if number == 0 else line for number, line in enumerate(comment)]
        while comment and not comment[-1].strip():
            comment.pop()
        while comment and not comment[0].strip():
            comment.pop(0)
        yield item_of(re.sub(r"\n{2,}", "\n", found[2]).strip(), comment)


def item_of(code: str, comment: list[str]) -> Item:
    if found := re.match(r"#define (\w+)", code):
        return Item(found[1], "constant", code, comment)
    if found := re.match(r"typedef struct (\w+) \{", code):
        return Item(found[1], "struct", code, comment)
    if found := re.match(r"typedef struct \w+ (\w+);", code):
        return Item(found[1], "handle", code, comment)
    if found := re.match(r"typedef .*?\(\*(\w+)\)\(", code):
        return Item(found[1], "callback", code, comment)
    if found := re.match(r"typedef .*?(\w+);", code):
        return Item(found[1], "type", code, comment)
    if found := re.match(r"[\w\s*]*?\b(\w+)\(", code):
        return Item(found[1], "function", code, comment)
    raise SystemExit(f"reference: unknown kind of declaration:\n{code}")


def opening(text: str, anchors: dict[str, str], language: str = "c") -> Iterator[str]:
    """Yield the opening comment of the header: text and a sample, then rules that each begin with a keyword."""
    comment = text[: text.index("*/")].removeprefix("/*").splitlines()
    lines = [re.sub(r"^ (\* ?)?", "", line).rstrip() for line in comment]
    rules: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        if found := re.match(r"([A-Z][\w+]*) {2,}(\S.*)", line):
            rules.append((found[1], [found[2]]))
        else:
            rules[-1][1].append(line[11:] if rules[-1][0] and line[:11].isspace() else line)
    for word, said in rules:
        if word:
            yield f"## {word}"
        yield from markdown(said, anchors, language)


def markdown(lines: list[str], anchors: dict[str, str], language: str = "c") -> Iterator[str]:
    """Yield the paragraphs of a comment: text, tables and indented samples."""
    for is_sample, rows in grouped(lines):
        if is_sample:
            yield f"```{language}\n" + "\n".join(row[4:] for row in rows) + "\n```"
            continue
        kept: list[str] = []
        for row in rows:
            # A table is a separate paragraph. A row without a first cell continues the row before it.
            if row.startswith("|") and kept and re.match(r"\|\s+\|", row) and kept[-1].startswith("|"):
                kept[-1] = merged(kept[-1], row)
            elif kept and (begins_table(row, kept[-1]) or row.startswith(("Returns", "Blocks", "Does not block"))):
                kept += ["", row]
            else:
                kept.append(row)
        yield from (
            "\n".join(linked(row, anchors) for row in part.splitlines()) for part in "\n".join(kept).split("\n\n")
        )


def begins_table(row: str, before: str) -> bool:
    return row.startswith("|") and not before.startswith("|")


def merged(row: str, more: str) -> str:
    cells = [
        " ".join(filter(None, (one.strip(), two.strip())))
        for one, two in zip(row.split("|")[1:-1], more.split("|")[1:-1])
    ]
    return "| " + " | ".join(cells) + " |"


#: Output parameters, names with the prefix of zklock, calls, and options of the linker.
NAME = (
    r"\*\w+\b|\b(?:zkl|ZKL)_\w*\*?(?:\(\))?|\b(?:\w+::)*[a-z_]+\(\)|\b(?:std|zkl|status)::[\w:]*\w|(?<= )-[Wl][\w,-]+"
)


def linked(text: str, anchors: dict[str, str]) -> str:
    """Format names as code, and link them if the page describes them."""

    def name(found: re.Match[str]) -> str:
        word = found[0].removesuffix("()")
        return f"[`{found[0]}`](#{anchors[word]})" if word in anchors else f"`{found[0]}`"

    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(NAME, name, part) for part in parts)


def index(items: list[Item]) -> Iterator[str]:
    for item in items:
        if item.kind != "constant":
            yield f"[`{item.name}`](#{slug_of(item.name)})"


def chapter(items: list[Item], anchors: dict[str, str]) -> Iterator[str]:
    """Yield the types and constants of a chapter, and then its functions."""
    constants = [item for item in items if item.kind == "constant"]
    types = [item for item in items if item.kind in ("handle", "struct", "callback", "type")]
    for item in types:
        yield f"### {item.name}"
        yield from described(item, anchors)
    if constants:
        yield "### Constants" if types else "### Its constants"
        rows = [f"| `{one.name}` | {value(one)} | {linked(' '.join(one.comment), anchors)} |" for one in constants]
        yield "\n".join(["| name | value | meaning |", "|---|---|---|", *rows])
    for item in items:
        if item.kind == "function":
            yield f"### {item.name}"
            yield from described(item, anchors)


def value(constant: Item) -> str:
    return "`" + constant.code.split(None, 2)[2].strip("()") + "`"


def described(item: Item, anchors: dict[str, str]) -> Iterator[str]:
    if item.kind == "struct":
        yield from markdown(item.comment, anchors)
        yield "\n".join(["| field | type | meaning |", "|---|---|---|", *fields(item.code, anchors)])
        return
    if item.kind in ("function", "callback"):
        yield f"```c\n{wrapped(item.code)}\n```"
    yield from markdown(item.comment, anchors)


def fields(code: str, anchors: dict[str, str]) -> Iterator[str]:
    for comment, declared in re.findall(r"/\*\*(.*?)\*/\s*(.*?);", code, re.DOTALL):
        said = " ".join(re.sub(r"^\s*\* ?", "", line).strip() for line in comment.splitlines()).strip()
        kind, name = re.fullmatch(r"(.*?)(\w+(?:\[\w+\])?)", declared.strip()).groups()  # type: ignore[union-attr]
        yield f"| `{name}` | `{kind.strip()}` | {linked(said, anchors)} |"


def wrapped(code: str) -> str:
    """Break a declaration that is too long for a page: one parameter on each line."""
    if len(code) <= 110:
        return code
    head, _, rest = code.partition("(")
    return head + "(\n    " + ",\n    ".join(part.strip() for part in rest.removesuffix(");").split(", ")) + ");"
