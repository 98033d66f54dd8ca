"""Containers of a plain loop: what a leaf is, and how the rows of inputs and outputs are taken apart and put together.

Written apart from remat's own trees, so that a mistake there is seen.
"""

import dataclasses
from collections.abc import Callable
from typing import Any


def children(tree: Any) -> list[Any] | None:
    """What a container holds, in order; None for a leaf."""
    if isinstance(tree, dict):
        return list(tree.values())
    if isinstance(tree, tuple | list):
        return list(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    return [] if tree is None else None


def rebuilt(tree: Any, parts: list[Any]) -> Any:
    """A container like `tree` that holds these parts."""
    if isinstance(tree, dict):
        return dict(zip(tree, parts, strict=True))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*parts)
    if isinstance(tree, tuple | list):
        return type(tree)(parts)
    if tree is None:
        return None
    names = [field.name for field in dataclasses.fields(tree)]
    return dataclasses.replace(tree, **dict(zip(names, parts, strict=True)))


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with `function` applied to each leaf, and to those of the other trees at its place."""
    parts = children(tree)
    if parts is None:
        return function(tree, *others)
    return rebuilt(tree, [mapped(function, *each) for each in zip(parts, *map(children, others), strict=True)])


def leaves(tree: Any) -> list[Any]:
    """All leaves of a tree."""
    parts = children(tree)
    return [tree] if parts is None else [leaf for part in parts for leaf in leaves(part)]
