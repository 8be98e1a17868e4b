#!/usr/bin/env python3
"""Build the site of the documentation, target/site, from docs/. `make docs` runs this script.

mdBook requires all pages below one directory, and a site cannot link into a repository. So the script copies docs/ to
target/site-source. If a page links to another file of the repository, the script adds a page with the contents of that
file below `repository/`. At the end it follows every link of the site. A missing page, anchor or picture is an error,
and so is a picture that a browser would have to download.
"""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

import reference
from documentation import DOCS, FENCE, LINK, ROOT, prose, title_of

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
MDBOOK = ROOT / "target/tools/bin/mdbook"
STAGE = TARGET / "site-source"
SITE = TARGET / "site"
RUST = TARGET / "doc"
BOOK = """
[book]
title = "zklock"
description = "Distributed locks on Apache ZooKeeper"
language = "en"
src = "src"

[build]
build-dir = "{site}"
create-missing = false

[output.html]
no-section-label = true
input-404 = ""

[output.html.print]
enable = false

[output.html.fold]
enable = true
level = 1

[output.html.playground]
runnable = false
"""
#: Pages that only the site has.
GENERATED = reference.pages()
LANGUAGES = {
    ".py": "python",
    ".rs": "rust",
    ".sh": "sh",
    ".java": "java",
    ".pyi": "python",
    ".toml": "toml",
    ".xml": "xml",
}


def main() -> None:
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    stage()
    build()
    copy_rust_reference()
    problems = sorted(check(SITE))
    if problems:
        fail("the site has broken links:\n" + "\n".join(problems))
    print(f"docs: {sum(1 for _ in own_pages(SITE))} pages; open {SITE / 'index.html'}")


def stage() -> None:
    """Write all pages, and the files to which they link, below the stage."""
    shutil.copytree(DOCS, STAGE / "src", ignore=shutil.ignore_patterns("*.md"))
    (STAGE / "book.toml").write_text(BOOK.format(site=SITE))
    waiting = sorted([*DOCS.rglob("*.md"), *GENERATED])
    staged: dict[Path, Path] = {}
    while waiting:
        source = waiting.pop()
        if source not in staged:
            staged[source] = place(source)
            waiting += write(source, staged[source])
    listed = (STAGE / "src/SUMMARY.md").read_text()
    with (STAGE / "src/SUMMARY.md").open("a") as summary:
        summary.write("\n# Files of the repository\n\n")
        for source in sorted(staged):
            page = staged[source].relative_to(STAGE / "src")
            if page.name != "SUMMARY.md" and f"]({page})" not in listed:
                summary.write(f"- [{source.relative_to(ROOT)}]({page})\n")


def place(source: Path) -> Path:
    """Return the path of a repository file in the stage. README.md becomes the index of its directory."""
    name = source.relative_to(DOCS) if source.is_relative_to(DOCS) else "repository" / source.relative_to(ROOT)
    name = name if name.suffix == ".md" else name.with_name(f"{name.name}.md")
    return STAGE / "src" / (name.with_name("index.md") if name.name == "README.md" else name)


def write(source: Path, page: Path) -> list[Path]:
    """Write one page, and return the repository files to which it links."""
    page.parent.mkdir(parents=True, exist_ok=True)
    text = GENERATED.get(source) or source.read_text()
    if source.suffix != ".md":
        fence = "```"
        while any((mark := FENCE.match(line)) and len(mark[2]) >= len(fence) for line in text.splitlines()):
            fence += "`"
        page.write_text(f"# {source.relative_to(ROOT)}\n\n{fence}{LANGUAGES.get(source.suffix, 'c')}\n{text}{fence}\n")
        return []
    found: list[Path] = []

    def moved(link: re.Match[str]) -> str:
        target, _, anchor = link[2].partition("#")
        # The HTML pages are those of `cargo doc`.
        if not target or urlsplit(target).scheme or target.endswith(".html"):
            return link[0]
        file = (source.parent / target).resolve()
        if not file.is_file() and file not in GENERATED:
            fail(f"{source.relative_to(ROOT)} links to {target}, which is not a file")
        found.append(file)
        there = os.path.relpath(place(file), page.parent)
        return f"[{link[1]}]({there}{'#' if anchor else ''}{anchor})"

    lines = []
    for _, line, is_prose in prose(text):
        # Links to the reference are comments in the source, because only the site has the pages of the reference.
        only_here = re.fullmatch(r"<!-- site: (.*) -->", line)
        lines.append(LINK.sub(moved, only_here[1] if only_here else line) if is_prose else line)
    staged = "\n".join(lines) + "\n"
    page.write_text(staged if title_of(staged) or page.name == "SUMMARY.md" else fail(f"{source} has no title"))
    return found


def build() -> None:
    if not MDBOOK.exists():
        fail(f"{MDBOOK.relative_to(ROOT)} is missing; run make setup")
    done = subprocess.run([MDBOOK, "build", STAGE], capture_output=True, text=True, check=False)
    if done.returncode != 0 or re.search(r"\b(WARN|ERROR)\b", done.stderr):
        fail(f"mdBook could not build the site:\n{done.stdout}{done.stderr}")


def copy_rust_reference() -> None:
    """Copy the pages of `cargo doc` into the site."""
    if not (RUST / "zklock/index.html").exists():
        fail(f"{RUST}/zklock is missing; run make docs")
    shutil.copytree(RUST, SITE / "rust", ignore=shutil.ignore_patterns(".lock"))


class Page(html.parser.HTMLParser):
    """The anchors of a page, and its references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.ids.add(value)
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name in ("src", "href"):
                self.parts.append(value)


def own_pages(site: Path) -> Iterator[Path]:
    """Yield the pages of mdBook. rustdoc checks its own pages."""
    return (page for page in site.rglob("*.html") if "rust" not in page.relative_to(site).parts)


def check(site: Path) -> Iterator[str]:
    """Yield a message for each reference that does not work without a network."""
    pages = {page: Page(page.read_text()) for page in own_pages(site)}
    for page, content in pages.items():
        name = page.relative_to(site)
        for part in content.parts:
            if urlsplit(part).scheme or part.startswith("//"):
                yield f"{name} would download {part}"
            elif not (page.parent / unquote(urlsplit(part).path)).is_file():
                yield f"{name} needs {part}, which does not exist"
        for link in content.links:
            url = urlsplit(link)
            if url.scheme:
                continue
            there = (page.parent / unquote(url.path)).resolve() if url.path else page
            if not there.is_file():
                yield f"{name} links to {link}, which does not exist"
            elif there in pages and url.fragment and unquote(url.fragment) not in pages[there].ids:
                yield f"{name} links to {link}, whose page does not have this anchor"


def fail(sentence: str) -> NoReturn:
    sys.exit(f"docs: {sentence}")


if __name__ == "__main__":
    main()
