"""Small tools for syntax trees: copies, templates whose names no program can have, and places in the user's file.

In: trees of `ast`. Out: trees of `ast`. Names of generated code begin with a dot, as in `.carry`: such a name compiles,
cannot be written in source text, and so cannot collide with a user's. Templates are written with these names.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = [
    "OwnScope",
    "at",
    "clone",
    "expression",
    "flattened",
    "hidden",
    "is_hidden",
    "names_in",
    "statements",
    "turn_parts",
    "visible",
    "words",
]

N = TypeVar("N", bound=ast.AST)
_PREFIX = "_remat_hidden_"  # of hidden names while a template is parsed; names of users are never given this way
_HIDDEN = re.compile(r"(?<![\w.\])\"'])\.(?=[a-z])")  # a dot that no expression comes before


class OwnScope(ast.NodeTransformer):
    """A transformer of one function's statements: what is inside of inner functions and classes stays as it is."""

    def _scope(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _scope


def clone(node: N) -> N:
    """A copy of a tree, marks included; several times faster than `copy.deepcopy`, which decorating would wait for."""
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
    """The name that generated code has for this."""
    return f".{name}"


def is_hidden(name: str) -> bool:
    """Whether a name is of generated code."""
    return name.startswith(".")


def visible(text: str) -> str:
    """Generated code as text that can be read: `.carry` as `_carry`."""
    return _HIDDEN.sub("_", text)


def statements(template: str, place: ast.AST) -> list[ast.stmt]:
    """The statements of a template, all of them at the place of one of the user's."""
    body = ast.parse(_HIDDEN.sub(_PREFIX, template)).body
    for node in body:
        _hide(node)
        at(node, place)
    return body


def expression(template: str, place: ast.AST) -> ast.expr:
    """The expression of a template, at the place of one of the user's."""
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
    """The same tree, each node of which has the place of another."""
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
    """The statements that a transformer gave, each of which may be several or none."""
    out: list[ast.stmt] = []
    for item in items:
        out.extend(item if isinstance(item, list) else [] if item is None else [item])
    return out


def turn_parts(loop: ast.For | ast.While) -> list[ast.AST]:
    """What every turn of a loop runs: its body, and its test or its target."""
    return [*loop.body, loop.test if isinstance(loop, ast.While) else loop.target]


def names_in(node: ast.AST) -> Iterator[str]:
    """The names in a tree, of inner functions too."""
    return (sub.id for sub in ast.walk(node) if isinstance(sub, ast.Name))
