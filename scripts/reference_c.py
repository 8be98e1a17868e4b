"""The reference page of a C header: its declarations and comments, by themes."""

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


class Theme(NamedTuple):
    """A chapter. An item belongs to the first theme whose pattern matches its whole name."""

    title: str
    introduction: str
    pattern: str


CLIENT_THEMES = [
    Theme(
        "Events",
        "Changes of sessions and holds are reported on the event thread, or when the program polls for them.",
        r"zkl_event\w*|ZKL_EVENT_\w+|zkl_config_set_(event_callback|poll_events)|zkl_client_(dispatch_events|event_fd)|zkl_user_drop"
        r"|zkl_listener\w*|zkl_(client|lock|leases)_listen|zkl_(client|lock)_set_event_callback|ZKL_LISTEN_\w+",
    ),
    Theme(
        "Metrics and logs",
        "The metrics of a client and the log of the library. [Observability](../observability.md) explains both.",
        r"zkl_(metrics|histogram|client_metrics|client_prometheus|\w*log\w*|histogram\w*)|ZKL_(LOG|HISTOGRAM|METRICS)\w*",
    ),
    Theme(
        "Configuration",
        "A program makes a config, sets its options, and can use it for any number of clients.",
        r"zkl_config\w*|zkl_auth_cb",
    ),
    Theme(
        "Clients",
        "A client is one ZooKeeper session. All locks and threads of a program can share it.",
        r"zkl_client\w*|ZKL_STATE_\w+",
    ),
    Theme(
        "Statuses",
        "Every call that can fail returns a status, and stores a message that describes the failure.",
        r"zkl_(status\w*|strerror|last_error_message|version\w*)|ZKL_(OK|E_\w+|VERSION\w*)",
    ),
    Theme(
        "Revocation",
        "Requesting that a holder releases its lock, and reacting to such a request.",
        r"zkl_\w*revo[ck]\w*",
    ),
    Theme(
        "Fencing",
        "Numbers with which a store can reject late writes: [fencing](../fencing.md).",
        r"zkl_(fencing_\w+|fence_check)(?<!_as)",
    ),
    Theme(
        "Participants and waits",
        "Queries for tools and messages: the participants of a lock, and what a call waits for.",
        r"zkl_(participant\w*|queue|wait|waiting\w*|semaphore_(participants|waiting))|ZKL_WAITS_FOR_\w+",
    ),
    Theme(
        "Operations",
        "Acquires that do not block a thread, for event loops, and holds of owners that are not threads. "
        "[Embedding](../embedding.md) shows an event loop.",
        r"zkl_op\w*|zkl_completion_queue\w*|zkl_\w+_start|zkl_\w+_as|zkl_check_may_wait|ZKL_OWNER_\w+",
    ),
    Theme(
        "Semaphores",
        "A limited number of leases. One call can acquire one or several of them.",
        r"zkl_(semaphore(?!_mutex)\w*|leases\w*|shared_count\w*)",
    ),
    Theme(
        "Locks",
        "All kinds of locks have the same handle type. [Choosing a recipe](../choosing.md) compares them.",
        r"zkl_(lock\w*|mutex\w*|semaphore_mutex_new|rwlock_new|multi_new\w*|acquire\w*|release\w*|cancel|is_held\w*|remaining_ms|remaining_ms_in_process|wait_lost)"
        r"|ZKL_LOCK_\w+",
    ),
]
#: The order of the chapters on the page.
ORDER = [
    "Statuses",
    "Configuration",
    "Clients",
    "Locks",
    "Fencing",
    "Semaphores",
    "Operations",
    "Events",
    "Revocation",
    "Participants and waits",
    "Metrics and logs",
    "The server",
    "Faults",
]
STANDALONE_THEMES = [
    Theme(
        "The server",
        "The server runs in the process of the program and has its own port.",
        r"zkl_standalone(_(start|stop|address|last\w+))?",
    ),
    Theme(
        "Faults",
        "Faults on request. A fault belongs to a session, and is in force when the call returns.",
        r"zkl_standalone_\w+|ZKL_OP_\w+",
    ),
]


def page(title: str, header: Path, themes: list[Theme], introduction: str) -> str:
    """Return the whole page."""
    text = header.read_text()
    items = list(read(text))
    anchors = {item.name: slug_of(item.name) for item in items if item.kind != "constant"}
    chapters: dict[str, list[Item]] = {
        theme.title: [] for theme in sorted(themes, key=lambda theme: ORDER.index(theme.title))
    }
    for item in items:
        chapters[theme_of(item, themes, header.name)].append(item)
    parts = [
        f"# {title}",
        f"This page is made from the comments of [`{header.name}`](../../include/{header.name}). {introduction}",
        *opening(text, anchors),
        "## Overview",
        *("- **" + f"[{name}](#{slug_of(name)})**: " + ", ".join(index(of)) for name, of in chapters.items() if of),
    ]
    for theme in themes:
        if not chapters[theme.title] and theme.title != "Metrics and logs":
            raise SystemExit(f"reference: {header.name} has no item for the theme {theme.title!r}")
    for name, of in chapters.items():
        if of:
            said = next(theme.introduction for theme in themes if theme.title == name)
            parts += [f"## {name}", said, *chapter(of, anchors)]
    return joined(parts)


def joined(parts: list[str]) -> str:
    """Join paragraphs with empty lines between them, except between the items of a list."""
    text = ""
    for part in parts:
        text += ("\n" if part.startswith("- ") and text.rsplit("\n", 1)[-1].startswith("- ") else "\n\n") + part
    return text.lstrip("\n") + "\n"


def theme_of(item: Item, themes: list[Theme], header: str) -> str:
    for theme in themes:
        if re.fullmatch(theme.pattern, item.name):
            return theme.title
    raise SystemExit(f"reference: {item.name} of {header} belongs to no theme: add it in scripts/reference_c.py")


def read(text: str) -> Iterator[Item]:
    """Yield the declarations of the header after its opening comment."""
    body = text[text.rindex("#include") :]
    for found in re.finditer(
        r"^/\*\*(.*?)\*/\n(.*?)(?=^/\*\*|^#ifdef|^#ifndef|^#endif|\Z)", body, re.MULTILINE | re.DOTALL
    ):
        comment = [re.sub(r"^ ?\* ?", "", line).rstrip() for line in found[1].strip("\n").splitlines()]
        comment = [line.strip() if number == 0 else line for number, line in enumerate(comment)]
        while comment and not comment[-1].strip():
            comment.pop()
        while comment and not comment[0].strip():
            comment.pop(0)
        code = re.sub(r"\n{2,}", "\n", found[2]).strip()
        if item := item_of(code, comment):
            yield item


def item_of(code: str, comment: list[str]) -> Item | None:
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
