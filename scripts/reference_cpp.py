"""The reference page of zklock.hpp: the public declarations of namespace zkl and their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from documentation import ROOT, slug_of
from reference_c import joined, markdown, opening

HEADER = ROOT / "include/zklock.hpp"
INTRODUCTION = """This page is made from the comments of [`zklock.hpp`](../../include/zklock.hpp). The header
contains the whole C++ interface; programs link `-lzklock`. See also [first steps](../first-steps/cpp.md),
[choosing a recipe](../choosing.md), and [the C reference](c.md) for the functions that the header calls."""


class Group(NamedTuple):
    """Consecutive declarations, with the comment before the first of them."""

    comment: list[str]
    declarations: list[str]
    #: The lines between the braces of a class or an enumeration.
    body: list[str]
    is_new: bool


def page() -> str:
    """Return the whole page."""
    text = HEADER.read_text()
    groups = [group for group in read(public(text)) if group.comment]
    named = {name_of(group): group for group in groups if group.body}
    anchors = {f"zkl::{name}": slug_of(f"zkl::{name}") for name in named}
    parts = ["# C++ reference", INTRODUCTION, *opening(text, anchors, "cpp"), "## Classes"]
    for name, group in named.items():
        if not is_enumeration(group):
            parts += [f"### zkl::{name}", *described(group, anchors)]
    parts.append("## Enumerations")
    for name, group in named.items():
        if is_enumeration(group):
            parts += [f"### zkl::{name}", *described(group, anchors)]
    parts += ["## Functions and types", *(member(group, anchors) for group in groups if not group.body)]
    return joined(parts)


def public(text: str) -> list[str]:
    """Return the lines of namespace zkl without namespace detail."""
    # Remove the comments that are not documentation.
    code = text[text.index("namespace zkl {") :]
    lines = re.sub(r"^/\*[^*].*?\*/$", "", code, flags=re.MULTILINE | re.DOTALL).splitlines()
    kept: list[str] = []
    is_detail = False
    for line in lines:
        if line.startswith("namespace detail"):
            is_detail = True
        if not is_detail and not line.startswith(("namespace", "inline namespace", "} // namespace")):
            kept.append(line)
        if line.startswith("} // namespace detail"):
            is_detail = False
    return kept


def read(lines: list[str]) -> Iterator[Group]:
    """Yield the declarations that are not indented."""
    comment: list[str] = []
    declarations: list[str] = []
    body: list[str] = []
    is_new = is_hidden = False
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if not line.strip() or line.lstrip().startswith("/**") or line.startswith("#"):
            if declarations and not is_hidden:
                yield Group(comment, declarations, body, is_new)
                comment = []
            declarations, body = [], []
        if line.startswith("#else"):
            while not lines[position].startswith("#endif"):
                position += 1
        if line.startswith("#"):
            is_new = "__cpp_lib_jthread" in line if line.startswith("#if") else is_new and not line.startswith("#endif")
        elif re.match(r"(private|protected):", line):
            is_hidden = True
        elif line.startswith("public:"):
            is_hidden = False
        elif line.startswith("/**"):
            comment = [line]
            while "*/" not in line:
                line = lines[position]
                position += 1
                comment.append(line)
            comment = [re.sub(r"^\s*/?\*+/? ?|\s*\*/$", "", one).rstrip() for one in comment]
        elif line.strip() and not line.startswith(("//", "}")):
            declared, inside, position = declaration(lines, position - 1)
            if "= delete" not in declared and not declared.startswith(("friend", "static ", "struct std::")):
                declarations.append(declared)
                body += inside
    if declarations and not is_hidden:
        yield Group(comment, declarations, body, is_new)


def declaration(lines: list[str], start: int) -> tuple[str, list[str], int]:
    """Return the head of a declaration, the body of a class or an enumeration, and the start of the next one."""
    position = start
    text = lines[position]
    while not re.search(r"[;{]", text):
        position += 1
        text += " " + lines[position].strip()
    head = " ".join(text.split())
    is_open = text.rstrip().endswith("{") or ("{" in text and text.count("{") != text.count("}"))
    end = position + 1
    if is_open or (not text.rstrip().endswith((";", "}")) and lines[end].startswith("{")):
        while not lines[end].startswith("}"):
            end += 1
        end += 1
    inside = lines[position + 1 : end - 1] if re.match(r"(class|struct|enum)\b", head) else []
    return head, inside, end


def head_of(declared: str) -> str:
    """Return the form that a caller needs: without attributes, templates of durations, initialisers and bodies."""
    # Replace a template parameter by its default.
    for parameter, value in re.findall(r"class (\w+) = ([\w:]+)[,>]", declared):
        declared = re.sub(rf"\b{parameter}\b", value, declared)
    text = re.sub(r"\[\[.*?\]\] ?|\b(inline|explicit|constexpr) |template <(?:[^<>]|<[^<>]*>)*> ?", "", declared)
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "(") - (letter in ")")
        if depth == 0 and (letter in "{;" or (text[at : at + 3] == " : " and "(" in text[:at])):
            text = text[:at]
            break
    return text.strip().removesuffix(" = default")


def name_of(group: Group) -> str:
    found = re.match(r"(?:enum )?(?:class|struct) (?:\[\[.*?\]\] )?(\w+)", group.declarations[0])
    return found[1] if found else ""


def is_enumeration(group: Group) -> bool:
    return group.declarations[0].startswith("enum")


def described(group: Group, anchors: dict[str, str]) -> Iterator[str]:
    yield from markdown(group.comment, anchors)
    inside = [line[4:] if line.startswith("    ") else line for line in group.body]
    if is_enumeration(group):
        yield from enumerators(inside)
        return
    if found := re.search(r": public (\w+)\b(?!:)", group.declarations[0]):
        yield f"All members of [`zkl::{found[1]}`](#{slug_of('zkl::' + found[1])}), and:"
    yield from (member(one, anchors) for one in read(inside))


def enumerators(inside: list[str]) -> Iterator[str]:
    text = "\n".join(inside)
    for comment, name, value in re.findall(r"(?:/\*\*(.*?)\*/\s*)?(\w+) = ([^,\n]+),?", text, re.DOTALL):
        yield f"- `{name}`, `{value}`" + (f": {' '.join(comment.split())}" if comment else "")


def member(group: Group, anchors: dict[str, str]) -> str:
    """Return a list item for a function with all its overloads, or one item for each field."""
    forms = list(dict.fromkeys(head_of(one) for one in group.declarations))
    if len(forms) > 1 and not any("(" in form for form in forms):
        return "\n".join(
            member(group._replace(comment=group.comment if one == 0 else [], declarations=[form + ";"]), anchors)
            for one, form in enumerate(forms)
        )
    told = " ".join(part.replace("\n", " ") for part in markdown(group.comment, anchors))
    new = " (C++20)" if group.is_new else ""
    return "- " + "<br>".join(f"`{form}`" for form in forms) + new + (f"  \n  {told}" if told else "")
