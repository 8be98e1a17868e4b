"""The reference page of the Python package, from its docstrings and from the signatures in the stubs."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

from documentation import ROOT, grouped, slug_of

MODULES = ["zklock", "zklock.aio", "zklock.testing"]
INTRODUCTION = """# Python reference

This page is made from the docstrings and the stubs of the package. `help(zklock)` shows the same text. All durations
are in seconds. See also [first steps](../first-steps/python.md), [first steps with
asyncio](../first-steps/asyncio.md), and [choosing a recipe](../choosing.md)."""
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    found = [name for name in MODULES if exists(name)]
    for name in found:
        parts += module(name)
    return "\n\n".join(parts) + "\n"


def exists(name: str) -> bool:
    return (ROOT / "python" / (name.replace(".", "/") + ".py")).exists() or (
        ROOT / "python" / name.replace(".", "/")
    ).is_dir()


def module(name: str) -> Iterator[str]:
    of = importlib.import_module(name)
    where = definitions(name)
    public = [one for one in of.__all__ if not one.startswith("__")]
    things = {one: getattr(of, one) for one in public}
    errors = {
        one: thing for one, thing in things.items() if isinstance(thing, type) and issubclass(thing, BaseException)
    }
    yield f"## {name}"
    yield from documented(of)
    yield "\n".join(
        f"- [`{one}`](#{anchor(name, one)}): {summary(thing)}" for one, thing in things.items() if one not in errors
    )
    for one, thing in things.items():
        if one not in errors:
            yield from described(name, one, thing, where)
    if errors:
        yield f"### {title(name, 'exceptions')}"
        yield "\n".join(["| exception | is a | when |", "|---|---|---|", *map(row, errors.values())])


def anchor(module_name: str, name: str) -> str:
    return slug_of(title(module_name, name))


def title(module_name: str, name: str) -> str:
    """Return a title that is unique on the page, because two modules have a Client."""
    return f"{module_name}.{name}"


def summary(thing: Any) -> str:
    return plain((inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " "))


def row(error: type) -> str:
    parents = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    return f"| `{error.__name__}` | {parents} | {summary(error)} |"


def definitions(name: str) -> dict[str, ast.AST]:
    """Return the top-level definitions of the package. Stubs take precedence, and then the sources of the module."""
    folder = ROOT / "python/zklock"
    own = ROOT / "python" / (name.replace(".", "/") + ".py")
    sources = [
        *sorted(folder.glob("_*.py")),
        folder / "_zklock.pyi",
        *([own] if own.exists() else sorted((ROOT / "python" / name.replace(".", "/")).glob("*.py"))),
    ]
    found: dict[str, ast.AST] = {}
    for source in sources:
        tree = ast.parse(Path(source).read_text())
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and docstring_after(node, tree):
                found[node.targets[0].id] = tree
    return found


def described(module_name: str, name: str, thing: Any, where: dict[str, ast.AST]) -> Iterator[str]:
    yield f"### {title(module_name, name)}"
    node = where.get(name)
    if isinstance(thing, type):
        if isinstance(node, ast.ClassDef):
            yield from heads(name, node)
        yield from documented(thing)
        if issubclass(thing, enum.Enum) and isinstance(node, ast.ClassDef):
            yield "\n".join(members(thing, node))
        elif isinstance(node, ast.ClassDef):
            yield from methods(thing, node)
        return
    if isinstance(node, ast.Module):
        for one in node.body:
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id == name:
                yield f"`{ast.unparse(one.value)}`"
                yield docstring_after(one, node).strip()
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield f"`{signature(node)}`"
    yield from documented(thing)


def heads(name: str, node: ast.ClassDef) -> Iterator[str]:
    """Yield the signature of the constructor, if programs may call it."""
    for made in node.body:
        if isinstance(made, ast.FunctionDef) and made.name in ("__new__", "__init__"):
            yield f"`{signature(made, name)}`"


def methods(thing: type, node: ast.ClassDef) -> Iterator[str]:
    """Yield the methods, properties and fields."""
    seen = set()
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            yield f"- `{one.target.id}: {ast.unparse(one.annotation)}`{docstring_after(one, node)}"
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) or one.name.startswith("_") or one.name in seen:
            continue
        seen.add(one.name)
        overloads = [
            same
            for same in node.body
            if isinstance(same, (ast.FunctionDef, ast.AsyncFunctionDef)) and same.name == one.name
        ]
        described = [
            same for same in overloads if any(is_named(mark, "overload") for mark in same.decorator_list)
        ] or overloads[:1]
        is_property = any(
            is_named(mark, "property") or is_named(mark, "cached_property") for mark in one.decorator_list
        )
        forms = (
            [f"{one.name}: {ast.unparse(one.returns)}" if one.returns else one.name]
            if is_property
            else [signature(same) for same in described]
        )
        text = " ".join(
            plain(part.replace("\n", " ")) for part in (inspect.getdoc(getattr(thing, one.name)) or "").split("\n\n")
        )
        yield "- " + "<br>".join(f"`{form}`" for form in forms) + f"  \n  {text}"


def docstring_after(field: ast.stmt, node: ast.ClassDef | ast.Module) -> str:
    """Return the docstring after a field or an alias."""
    following = node.body[node.body.index(field) + 1 :][:1]
    if following and isinstance(following[0], ast.Expr) and isinstance(following[0].value, ast.Constant):
        return "  \n  " + plain(" ".join(str(following[0].value.value).split()))
    return ""


def members(thing: Any, node: ast.ClassDef) -> Iterator[str]:
    """Yield the values of an enumeration, each with the docstring after it."""
    for number, one in enumerate(node.body):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            name = one.targets[0].id
            following = node.body[number + 1] if number + 1 < len(node.body) else None
            said = following.value if isinstance(following, ast.Expr) else None
            text = str(said.value) if isinstance(said, ast.Constant) else ""
            yield f"- `{name}` = `{thing[name].value!r}`: {plain(' '.join(text.split()))}"


def is_named(node: ast.AST, name: str) -> bool:
    return (node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "") == name


def signature(node: Function, name: str = "") -> str:
    """Return the signature as a caller sees it, without self."""
    arguments = node.args
    kept = ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=[one for one in arguments.args if one.arg not in ("self", "cls")],
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )
    returned = "" if name or node.returns is None else ast.unparse(node.returns)
    awaited = re.fullmatch(r"Coroutine\[Any, Any, (.*)\]", returned)
    returns = f" -> {awaited[1] if awaited else returned}" if returned else ""
    asynchronous = "async " if awaited or isinstance(node, ast.AsyncFunctionDef) else ""
    spaced = re.sub(r"(: [\w\[\]., |]+)=", r"\1 = ", ast.unparse(kept))
    return f"{asynchronous}{name or node.name}({spaced}){returns}"


def documented(thing: Any) -> Iterator[str]:
    """Yield the paragraphs of a docstring. Indented paragraphs are samples."""
    for is_code, lines in grouped((inspect.getdoc(thing) or "").splitlines()):
        if is_code:
            indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
            code = "\n".join(line[indent:] for line in lines)
            yield f"<!-- sample: not run: of a docstring, with names of the reader's -->\n```python\n{code}\n```"
        else:
            yield plain("\n".join(lines))


def plain(text: str) -> str:
    """Convert double backquotes and colons from reST to Markdown, and escape the markup characters of Markdown."""
    text = re.sub(r"``(.+?)``", r"`\1`", re.sub(r"::$", ":", text))
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"(<|(?<![*\n])\*(?![* ]))", r"\\\1", part) for part in parts
    )
