#!/usr/bin/env python3
"""Refuse files of a Rust crate or a Python package that import each other in a circle (`make check`).

The message shows, for each file of a circle, the names that it imports from the next file. A name belongs to the file
that defines it, because `pub use` only passes a name on. A second check treats each directory as one layer, and
refuses circles between layers. The checks ignore the tests of a crate, which may use everything, and Python stubs,
which describe other files. ast-grep parses the Rust files.

The checks see imports and paths only. They do not see calls of methods: if several files contain methods of one type,
as the files of `core/src/engine` do with `impl Engine`, these files can call each other's methods without an import.
The checks also do not look through a glob: a name that `pub use module::*` passes on counts as a name of the file that
passes it on.

`circles.py DIRECTORY...` checks crates (the directory of lib.rs) and packages (the directory of __init__.py). With
`--order PAGE`, a file may import only the files that the tables of this page list after it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

AST_GREP = Path(sys.executable).with_name("ast-grep")
TEST_FILES = {"tests", "models"}
ATTRIBUTE = {"kind": "attribute_item", "regex": r"^#\[(test|cfg\((all\()?test)\b"}
TEST = {"follows": {**ATTRIBUTE, "stopBy": {"not": {"kind": "attribute_item"}}}}
# A use declaration contains its paths. The arguments of macros and attributes are token trees.
INSIDE = {"inside": {"any": [TEST, {"kind": "use_declaration"}], "stopBy": "end"}}
KINDS = ("mod_item", "use_declaration", "scoped_identifier", "scoped_type_identifier", "token_tree")
RULE = {"any": [{"kind": kind} for kind in KINDS], "not": {"any": [TEST, INSIDE]}}

Names = tuple[str, ...]
# For each file, the files from which it imports, with the imported names.
Graph = dict[Path, dict[Path, set[str]]]


def main() -> int:
    """Print all circles, and return the exit status."""
    parser = argparse.ArgumentParser(prog="circles.py")
    parser.add_argument("--order", type=Path, metavar="PAGE")
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIRECTORY")
    arguments = parser.parse_args()
    status = 0
    for source in arguments.directories:
        if not source.is_dir():
            sys.exit(f"circles: no directory {source}")
        graph = python_graph(source) if (source / "__init__.py").exists() else Crate(source).graph()
        if arguments.order:
            status |= print_imports_against_order(graph, source, arguments.order)
        # The search for circles of files removes their imports from the graph, so no circle is printed twice.
        status |= print_circles("files", graph)
        status |= print_circles("layers", between_layers(graph, source))
    return status


def print_imports_against_order(graph: Graph, source: Path, page: Path) -> int:
    """Print the imports of files that the page lists earlier. Return 1 if there is such an import, or else 0."""
    order: list[Path] = []
    # The first cell of a row names files and directories. A cell that ends with "in `runtime/`" names files there.
    for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", page.read_text(), re.MULTILINE):
        directory = re.search(r" in `(\w+)/`", cell)
        order += [source / (directory[1] if directory else "") / name for name in re.findall(r"`([^`]+)`", cell)]
    if not any(listed.exists() for listed in order):
        sys.exit(f"circles: the tables of {page} list no file of {source}")

    def place(file: Path) -> int | None:
        places = (at for at, listed in enumerate(order) if listed == file or listed.with_suffix("") in file.parents)
        return next(places, None)

    status = 0
    for file, imports in graph.items():
        for other, names in imports.items():
            at, other_at = place(file), place(other)
            if at is not None and other_at is not None and other_at < at:
                status = 1
                print(f"circles: {file} imports {', '.join(sorted(names))} from {other}, which {page} lists before it")
    return status


def print_circles(kind: str, imports: Graph) -> int:
    """Print all circles and remove their imports. Return 1 if there is a circle, or else 0."""
    status = 0
    while circle := shortest_circle(imports):
        status = 1
        print(f"circles: {len(circle)} {kind} import each other in a circle:")
        for file, other in zip(circle, [*circle[1:], circle[0]]):
            print(f"  {file} imports {', '.join(sorted(imports[file].pop(other)))} from {other}")
    return status


def between_layers(graph: Graph, source: Path) -> Graph:
    """Return the imports between the layers. A layer is a directory at the top with a `mod.rs`, or any other file."""

    def layer(file: Path) -> Path:
        directory = source / file.relative_to(source).parts[0]
        return directory if any((directory / root).exists() for root in ("mod.rs", "__init__.py")) else file

    layers: Graph = defaultdict(lambda: defaultdict(set))
    for file, imports in graph.items():
        for other, names in imports.items():
            if layer(file) != layer(other):
                layers[layer(file)][layer(other)] |= names
    return layers


def shortest_circle(graph: Graph) -> list[Path]:
    """Return the files of a shortest circle, or an empty list."""
    best: list[Path] = []
    for start in sorted(graph):
        ways, reached = {start: [start]}, [start]
        for file in reached:
            for other in sorted(graph.get(file, ())):
                if other == start and not 0 < len(best) <= len(ways[file]):
                    best = ways[file]
                if other not in ways:
                    ways[other] = [*ways[file], other]
                    reached.append(other)
    return best


def python_graph(package: Path) -> Graph:
    """Return the imports of a Python package, including those that only a type checker sees."""
    files = {}
    for file in sorted(package.rglob("*.py*")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: Graph = defaultdict(lambda: defaultdict(set))
    for name, file in files.items():
        parent = name if file.stem == "__init__" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(file.read_text() if file.suffix == ".py" else "")):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            module = (
                resolve_name("." * node.level + (node.module or ""), parent) if isinstance(node, ast.ImportFrom) else ""
            )
            for item in names:
                other = files.get(f"{module}.{item}".strip(".")) or files.get(module)
                if other and other != file:
                    graph[file][other].add(item)
    return graph


class Crate:
    """The modules of a Rust crate. The names of a module are its path from the root of the crate."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.file_of: dict[Names, Path] = {}
        self.aliases: dict[Names, dict[str, Names]] = defaultdict(dict)
        for file in sorted(source.rglob("*.rs")):
            *parents, stem = file.relative_to(source).with_suffix("").parts
            if not TEST_FILES & {*parents, stem}:
                # If a crate has lib.rs and main.rs, the root is lib.rs, because no file can import main.rs.
                self.file_of.setdefault((*parents,) if stem in ("lib", "main", "mod") else (*parents, stem), file)

    def graph(self) -> Graph:
        """Return the imports of the crate."""
        paths: list[tuple[Path, Names]] = []
        for file, module, text in self.nodes():
            if declaration := re.match(r"(pub\b.*?\s)?use\s", text):
                for path, alias in items_of(text[declaration.end() :]):
                    if absolute := self.absolute(module, path):
                        # Two modules may import each other with globs, so a glob has no definition to follow.
                        if alias != "*":
                            self.aliases[module][alias] = absolute
                        paths += [] if declaration[1] else [(file, absolute)]
            else:
                for words in re.findall(r"\w+(?:::\w+)+", text):
                    paths.append((file, self.absolute(module, tuple(words.split("::")))))
        graph: Graph = defaultdict(lambda: defaultdict(set))
        for file, path in paths:
            other, item = self.definition(path)
            if item and other != file:
                graph[file][other].add(item)
        return graph

    def nodes(self) -> Iterator[tuple[Path, Names, str]]:
        """Yield the use declarations, paths and token trees of the crate, with their files and modules."""
        rule = json.dumps({"id": "import", "language": "Rust", "rule": RULE})
        command = [str(AST_GREP), "scan", "--inline-rules", rule, "--json=stream", str(self.source)]
        scan = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = [json.loads(line) for line in scan.stdout.splitlines()]
        module_of = {file: module for module, file in self.file_of.items()}
        blocks: list[tuple[Path, int, Names]] = []
        for node in sorted(found, key=lambda node: (node["file"], node["range"]["byteOffset"]["start"])):
            file, text, span = Path(node["file"]), node["text"], node["range"]["byteOffset"]
            if file not in module_of:
                continue
            # Of the modules in braces around the node, the innermost is the last.
            blocks = [block for block in blocks if block[0] == file and span["start"] < block[1]]
            module = blocks[-1][2] if blocks else module_of[file]
            if not (declaration := re.match(r"(?:pub\S* )?mod (\w+)", text)):
                yield file, module, text
            elif text.endswith("}"):
                blocks.append((file, span["end"], (*module, declaration[1])))
                self.file_of[blocks[-1][2]] = file

    def absolute(self, module: Names, path: Names) -> Names:
        """Return the path from the root, or nothing if the path leads to another crate."""
        while path[:2] == ("super", "super"):
            module, path = module[:-1], path[1:]
        first, rest = path[0], path[1:]
        if first in ("crate", "self", "super"):
            return {"crate": rest, "self": (*module, *rest), "super": (*module[:-1], *rest)}[first]
        if (*module, first) in self.file_of:
            return (*module, *path)
        alias = self.aliases[module].get(first)
        return (*alias, *rest) if alias else ()

    def definition(self, path: Names) -> tuple[Path, str]:
        """Return the file that defines the item of a path, and the item. For a module, the item is empty."""
        for at, name in enumerate(path):
            if path[: at + 1] not in self.file_of:
                alias = self.aliases[path[:at]].get(name)
                return self.definition((*alias, *path[at + 1 :])) if alias else (self.file_of[path[:at]], name)
        return self.file_of[path], ""


def items_of(declaration: str) -> Iterator[tuple[Names, str]]:
    """Yield the path and the new name of each item of a use declaration."""
    prefixes: list[Names] = [()]
    path: Names = ()
    for token in re.findall(r"\w+|[{},;*]", declaration):
        if token == "{":
            prefixes.append(path)
        elif token in ",};":
            if path != prefixes[-1]:
                path, alias = (path[:-2], path[-1]) if path[-2:-1] == ("as",) else (path, "")
                path = path[:-1] if path[-1] == "self" else path
                yield path, alias or path[-1]
            if token == "}":
                prefixes.pop()
            path = prefixes[-1]
        else:
            path = (*path, token)


if __name__ == "__main__":
    sys.exit(main())
