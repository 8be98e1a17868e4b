#!/usr/bin/env python3
"""Refuse old names and sentences that readers stumble over, and say what to write instead (`make check`).

- Names: the column "not" of docs/glossary.md. An identifier in `code style` must not come back, in code or in a code
  span of a comment or page. The check ignores an identifier that a note in parentheses follows, because such a name is
  wrong only in the context that the note names.
- Sentences: the rules of scripts/sentences.yml, for comments, docstrings and pages.

ast-grep parses all languages and finds the identifiers and the prose. Its own rules belong to one language each, so
this script applies each rule to what ast-grep found in all languages.

`language.py [PATH...]` checks these files, or the whole repository.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = "docs/glossary.md"
SENTENCES = "scripts/sentences.yml"
AST_GREP = Path(sys.executable).with_name("ast-grep")

# The nodes of a syntax tree that are names, and those that are prose.
CODE = {
    "Rust": [
        *("identifier", "type_identifier", "field_identifier", "shorthand_field_identifier"),
        *("scoped_identifier", "scoped_type_identifier"),
    ],
    "C": ["identifier", "type_identifier", "field_identifier"],
    "Cpp": ["identifier", "type_identifier", "field_identifier", "namespace_identifier"],
    "Java": ["identifier", "type_identifier"],
    "Python": ["identifier"],
}
PROSE = {
    "Rust": ["line_comment", "block_comment"],
    "C": ["comment"],
    "Cpp": ["comment"],
    "Java": ["line_comment", "block_comment"],
    "Python": ["comment"],
    "Markdown": ["inline", "pipe_table_cell"],
}
DOCSTRING = {"kind": "string", "inside": {"kind": "expression_statement"}}
# Pages that describe the past with its names, and the page that lists the old names.
HISTORY = ("CHANGELOG.md", "docs/decisions/", GLOSSARY)

Node = dict[str, Any]


def main() -> int:
    """Print what must not be in the repository, and return the exit status."""
    names = old_names()
    if not names:
        sys.exit(f"language: {GLOSSARY} has no table with a column of old names")
    # A longer name comes first, so that `a::b` is found before `a`.
    name = re.compile(rf"\b({'|'.join(sorted(names, key=len, reverse=True))})\b")
    sentences = [(re.compile(rule["regex"].replace(" ", r"[\s*]+")), rule["message"]) for rule in sentence_rules()]
    problems = set()
    for node in nodes(names):
        text, file, is_prose = node["text"], node["file"], node["ruleId"] == "prose"
        found: list[tuple[re.Match[str], str]] = []
        if not file.startswith(HISTORY):
            spans = code_spans(text) if is_prose else [(0, len(text))]
            found += [(match, names[match[0]]) for span in spans for match in name.finditer(text, *span)]
        if is_prose and file != GLOSSARY:
            found += [(match, message) for rule, message in sentences for match in rule.finditer(text)]
        for match, message in found:
            line = node["range"]["start"]["line"] + 1 + text.count("\n", 0, match.start())
            problems.add((file, line, " ".join(match[0].split()), message))
    for file, line, words, message in sorted(problems):
        print(f'{file}:{line}: "{words}": {message}')
    return 1 if problems else 0


def old_names() -> dict[str, str]:
    """Return each name of the glossary that must not come back, with the message about it."""
    names: dict[str, str] = {}
    for row in (ROOT / GLOSSARY).read_text().splitlines():
        # The columns are term, definition, source, names and "not".
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        if len(cells) == 5:
            term = f"{cells[0]}, as in {cells[3]}" if cells[3] else cells[0]
            for name in re.findall(r"`([\w:]+)`(?! \()", cells[4]):
                names[name] = f"{names[name]}, or {term}" if name in names else f"old name; the term is {term}"
    return names


def sentence_rules() -> Iterator[dict[str, str]]:
    """Yield the rules for sentences. A space of a rule also matches the end of a line."""
    yield from yaml.safe_load_all((ROOT / SENTENCES).read_text())


def nodes(names: dict[str, str]) -> Iterator[Node]:
    """Yield the nodes of all prose, and the nodes of code that end with an old name."""
    name = {"regex": rf"(^|::)({'|'.join(names)})$"}
    rules: list[Node] = []
    for language, kinds in PROSE.items():
        prose: list[Node] = [{"kind": kind} for kind in kinds]
        if language == "Python":
            prose.append(DOCSTRING)
        rules.append({"id": "prose", "language": language, "rule": {"any": prose}})
        if language in CODE:
            code = [{"kind": kind, **name} for kind in CODE[language]]
            rules.append({"id": "code", "language": language, "rule": {"any": code}})
    command = [AST_GREP, "scan", "--inline-rules", "\n---\n".join(map(json.dumps, rules)), "--json=stream"]
    command += ["--globs", "!target", *(sys.argv[1:] or ["."])]
    scan = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    yield from map(json.loads, scan.stdout.splitlines())


def code_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of the code spans of prose."""
    for span in re.finditer(r"(?<!`)(`+)[^`]+\1(?!`)", text):
        yield span.span()


if __name__ == "__main__":
    sys.exit(main())
