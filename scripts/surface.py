#!/usr/bin/env python3
"""Write abi/rust.txt, the public interface of the crate zklock: its items, their methods and their traits.

`surface.py` writes the list, and `surface.py --check` fails if it is out of date. The list comes from the pages of
`cargo doc` in target/doc. So it contains the items that a program can name, and not the module `internal`. For an item
that the crate re-exports from zklock-core or zklock-base, the list uses the page of that crate, which names the types
as the source does. Another version of rustdoc may use another page layout, so the check compares only lists of the
same version.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "doc"
PAGES = DOCS / "zklock"
LIST = ROOT / "abi" / "rust.txt"
INTRODUCTION = "# The public items of the crate zklock, written by `make surface` with {}; `make docs` checks them.\n"
# Traits that programs do not name, and traits that almost every type implements.
TACIT = {
    "StructuralPartialEq",
    "Freeze",
    "!Freeze",
    "RefUnwindSafe",
    "!RefUnwindSafe",
    "UnwindSafe",
    "!UnwindSafe",
    "Send",
    "Sync",
}
TACIT |= {"Unpin", "UnsafeUnpin"}
# The marks of the lists of traits on a page. They follow the methods of the item.
TRAITS, AUTO, BLANKET = (f'id="{kind}-implementations-list"' for kind in ("trait", "synthetic", "blanket"))


def text(markup: str) -> str:
    """Return the visible text of some markup, on one line."""
    # Remove private fields, and the button that shows a long list.
    markup = re.sub(r'<span class="comment">.*?</span>|<summary.*?</summary>', "", markup, flags=re.DOTALL)
    plain = html.unescape(re.sub(r"<[^>]*>", "", markup.replace("</div>", "</div> ")))
    # rustdoc breaks long declarations into lines; undo this.
    return re.sub(r"([(<]) | (?=[)>])|,(?= [)])", r"\1", " ".join(plain.split()))


def between(page: str, begin: str, *ends: str) -> str:
    """Return the part of a page from the first mark to the next of the other marks."""
    _, found, rest = page.partition(begin)
    if not found:
        return ""
    return rest[: min((at for end in ends if (at := rest.find(end)) >= 0), default=len(rest))]


def headers(part: str, kinds: str) -> list[str]:
    """Return the declarations of the given kinds in a part of a page."""
    pattern = rf'<section id="[^"]*" class="(?:{kinds})(?: [^"]*)?">.*?<h[34] class="code-header">(.*?)</h[34]>'
    return [text(header) for header in re.findall(pattern, part, re.DOTALL)]


def item(page: str) -> str:
    """Return the lines for an item: its declaration, one line for each method, and one for its traits."""
    declaration = re.search(r'<pre class="rust item-decl">(.*?)</pre>', page, re.DOTALL)
    if declaration is None:
        sys.exit("surface: a page of cargo doc has no declaration; its format has changed")
    lines = [text(declaration[1])]
    own = between(page, 'id="implementations-list"', TRAITS, AUTO, BLANKET)
    lines += [f"    {method}" for method in headers(own, "method|associatedconstant")]
    implemented = headers(between(page, TRAITS, AUTO, BLANKET), "impl")
    implemented += headers(between(page, AUTO, BLANKET), "impl")
    traits = {re.sub(r"^impl(<[^>]*>)? | for .*$| where .*$", "", header) for header in implemented} - TACIT
    if traits:
        lines.append("    traits: " + ", ".join(sorted(traits)))
    return "\n".join(lines) + "\n"


def introduction() -> str:
    """Return the first line, which contains the version of rustdoc."""
    version = subprocess.run(["rustdoc", "--version"], check=True, capture_output=True, text=True).stdout
    return INTRODUCTION.format(" ".join(version.split()[:2]))


def surface() -> str:
    """Return the whole list."""
    names = re.findall(r'<li><a href="([^"]+\.html)">', (PAGES / "all.html").read_text())
    reexported = re.findall(
        r"^pub use (zklock_\w+::\w+)::\{?([^;}]+)", (ROOT / "src" / "lib.rs").read_text(), re.MULTILINE
    )
    modules = {name.strip(): module for module, items in reexported for name in items.split(",")}
    return introduction() + "".join("\n" + item(page(name, modules)) for name in names)


def page(name: str, modules: dict[str, str]) -> str:
    """Return the page of an item. An item of another crate can have a page only there."""
    module = modules.get(name.split(".")[-2])
    folders = [PAGES] if module is None else [DOCS / module.replace("::", "/"), PAGES]
    return next(folder / name for folder in folders if (folder / name).exists()).read_text()


def main() -> None:
    """Write or check the list."""
    if "--check" not in sys.argv[1:]:
        LIST.write_text(surface())
        return
    kept = LIST.read_text()
    if not kept.startswith(introduction()):
        print(f"surface: {LIST.relative_to(ROOT)} was not compared: {kept.splitlines()[0]}")
    elif surface() != kept:
        sys.exit(f"{LIST.relative_to(ROOT)} is out of date; run make surface")


if __name__ == "__main__":
    main()
