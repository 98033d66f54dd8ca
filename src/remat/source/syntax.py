"""Helpers for syntax trees: copies, templates with names that no program can have, and locations in the user's file.

In: trees of `ast`. Out: trees of `ast`. Names of generated code begin with a dot, as in `.carry`: such a name compiles
but cannot be written in source code, so it cannot collide with a user's. Templates are written with these names.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = [
    "OwnScope",
    "assigned_pairs",
    "at",
    "clone",
    "expression",
    "flattened",
    "hidden",
    "is_hidden",
    "names_in",
    "pairs_of",
    "statements",
    "turn_parts",
    "visible",
    "words",
]

N = TypeVar("N", bound=ast.AST)
_PREFIX = "_remat_hidden_"  # of hidden names while a template is parsed; user names in templates never have it
_HIDDEN = re.compile(r"(?<![\w.\])\"'])\.(?=[a-z])")  # a dot that follows no expression


class OwnScope(ast.NodeTransformer):
    """A transformer of one function's statements, which leaves inner functions and classes unchanged."""

    def _scope(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _scope


def clone(node: N) -> N:
    """A copy of a tree, including marks; several times faster than `copy.deepcopy`, for fast decorating."""
    new = node.__class__.__new__(node.__class__)
    for field, value in node.__dict__.items():
        if isinstance(value, ast.AST):
            value = clone(value)
        elif isinstance(value, list):
            value = [clone(item) if isinstance(item, ast.AST) else item for item in value]
        setattr(new, field, value)
    return new


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def hidden(name: str) -> str:
    """The name in generated code for this name."""
    return f".{name}"


def is_hidden(name: str) -> bool:
    """Whether a name belongs to generated code."""
    return name.startswith(".")


def visible(text: str) -> str:
    """Generated code as readable text, with `_carry` for `.carry`."""
    return _HIDDEN.sub("_", text)


def statements(template: str, place: ast.AST) -> list[ast.stmt]:
    """The statements of a template, all with the location of a node of the user's."""
    body = ast.parse(_HIDDEN.sub(_PREFIX, template)).body
    for node in body:
        _hide(node)
        at(node, place)
    return body


def expression(template: str, place: ast.AST) -> ast.expr:
    """The expression of a template, with the location of a node of the user's."""
    node = ast.parse(_HIDDEN.sub(_PREFIX, template), mode="eval").body
    _hide(node)
    return at(node, place)


def _hide(root: ast.AST) -> None:
    for node in ast.walk(root):
        for field in ("id", "arg", "name"):
            word = getattr(node, field, None)
            if isinstance(word, str) and word.startswith(_PREFIX):
                setattr(node, field, hidden(word[len(_PREFIX) :]))
        if isinstance(node, ast.Nonlocal):
            node.names = [hidden(n[len(_PREFIX) :]) if n.startswith(_PREFIX) else n for n in node.names]


def at(node: N, place: ast.AST) -> N:
    """The same tree, with the location of another node set on each of its nodes."""
    where = {
        name: getattr(place, name)
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        if hasattr(place, name)
    }
    for sub in ast.walk(node):
        if "lineno" in sub._attributes:
            sub.__dict__.update(where)
    return node


def flattened(items: Iterable[ast.stmt | list[ast.stmt] | None]) -> list[ast.stmt]:
    """The results of a transformer as one list; each may be several statements or none."""
    out: list[ast.stmt] = []
    for item in items:
        out.extend(item if isinstance(item, list) else [] if item is None else [item])
    return out


def turn_parts(loop: ast.For | ast.While) -> list[ast.AST]:
    """The parts that every turn of a loop runs: its body, and its test or its target."""
    return [*loop.body, loop.test if isinstance(loop, ast.While) else loop.target]


def names_in(node: ast.AST) -> Iterator[str]:
    """The names in a tree, including inner functions."""
    return (sub.id for sub in ast.walk(node) if isinstance(sub, ast.Name))


def assigned_pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment, each with its value; in `a, b = c, d` these are two."""
    return (pair for target in node.targets for pair in pairs_of(target, node.value))


def pairs_of(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The parts of a target with the parts of its value, if both are written out and of one length."""
    parts, values = getattr(target, "elts", None), getattr(value, "elts", None)
    starred = any(isinstance(part, ast.Starred) for part in (*(parts or ()), *(values or ())))
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Tuple | ast.List) or starred:
        return [(target, value)]
    return [*zip(parts, values, strict=True)] if len(parts) == len(values) else [(target, value)]  # type: ignore[arg-type]
