"""Pytrees for the tests, with no help from remat: what a tree's leaves are, and how they are put back."""

from dataclasses import fields, is_dataclass

__all__ = ["flatten", "leaves_of", "tree_map"]


def flatten(tree):
    """The leaves of a tree, and a function that builds the same tree of other leaves; dicts by their sorted keys."""
    children, build = _children(tree)
    if children is None:
        return [tree], lambda leaves: leaves[0]
    parts = [flatten(child) for child in children]

    def rebuild(leaves):
        rest, made = list(leaves), []
        for old, make in parts:
            made.append(make(rest[: len(old)]))
            rest = rest[len(old) :]
        return build(made)

    return [leaf for leaves, _ in parts for leaf in leaves], rebuild


def leaves_of(tree):
    return flatten(tree)[0]


def tree_map(function, tree):
    leaves, build = flatten(tree)
    return build([function(leaf) for leaf in leaves])


def _children(tree):
    """The parts of a container and how it is built of others; (None, None) for a leaf."""
    if tree is None:
        return [], lambda _: None
    if isinstance(tree, dict):
        keys = sorted(tree)
        return [tree[key] for key in keys], lambda parts: type(tree)((key, parts[keys.index(key)]) for key in tree)
    if isinstance(tree, tuple):
        return list(tree), type(tree)._make if hasattr(tree, "_make") else tuple
    if type(tree) is list:
        return tree, list
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in fields(tree)], lambda parts: type(tree)(*parts)
    return None, None
