"""Carries and outputs, checked against the structure and the leaf specs that they must have.

There are two checks. `structure_check` makes a fast predicate that runs in every step. Only if that returns False does
`flatten_checked` look at each leaf: it accepts Python numbers that become arrays, and raises an error that names the
leaf for anything else.
"""

from collections.abc import Callable
from typing import Any

from remat.errors import CarryError, StepError
from remat.loops.leaf_spec import LeafOps
from remat.pytree import StructureMismatch, TreeDef, flatten

__all__ = ["flatten_checked", "flatten_leaves", "never_matches", "structure_check"]


def flatten_checked(
    leaf_ops: LeafOps, tree: TreeDef, specs: list[Any], names: list[str], value: Any, root: str, i: int
) -> tuple[list[Any], list[Any]]:
    """The leaves of a value with the structure `tree` and leaves of `specs`, or a StepError that names the leaf.

    The specs are returned too: a new list if a Python number has become an array, else the same one. For messages, the
    value is the `root` ("carry", "y") after step i.
    """
    try:
        leaves = tree.flatten_like(value, root, leaf_ops.unpack)
    except StructureMismatch as mismatch:
        raise _mismatch(
            f"{mismatch} after step {i}: a step must return its {root} with the structure that "
            f"{'it gets' if root == 'carry' else 'it had at first'}",
            root,
            i,
            root,
        ) from None
    # A Python number may become an array once; a spec that is not weak never changes, so shapes and dtypes are stable.
    for k, (leaf, spec, name) in enumerate(zip(leaves, specs, names, strict=True)):
        if leaf_ops.matches_spec(leaf, spec):
            continue
        try:
            actual = leaf_ops.spec_of(leaf, f"{name} after step {i}")
        except StepError as error:
            raise _mismatch(str(error), root, i, name) from error.__cause__
        if not (spec.promotes_to(actual) or (actual.weak and actual.promotes_to(spec))):
            advice = spec.advice(actual, name)
            raise _mismatch(
                f"{name} was {spec} and became {actual} after step {i}: shapes and dtypes stay the same{advice}",
                root,
                i,
                name,
            )
        if spec.weak and actual != spec:
            specs = [*specs[:k], spec.promoted(actual), *specs[k + 1 :]]
    return leaves, specs


def _mismatch(message: str, root: str, i: int, name: str) -> StepError:
    """The error for a value that differs; for a carry it has the step and the leaf, which callers may catch."""
    return CarryError(message, i, name) if root == "carry" else StepError(message)


def structure_check(leaf_ops: LeafOps, tree: TreeDef, specs: list[Any]) -> Callable[[Any], bool]:
    """A fast predicate for values of this structure with leaves of these specs.

    It runs in every step, so the structure is compiled into nested closures once, with the common tuples unrolled.
    """
    return _structure_check(leaf_ops, tree, iter(specs))


def _structure_check(leaf_ops: LeafOps, tree: TreeDef, specs: Any) -> Callable[[Any], bool]:
    if tree.node_type is None:
        return leaf_ops.fast_match(next(specs))
    if tree.node_type is type(None):  # None is a container without children
        return lambda value: value is None
    checks = [_structure_check(leaf_ops, child, specs) for child in tree.children]
    count = len(checks)
    if tree.node_type is tuple and count == 1:
        return lambda value: type(value) is tuple and len(value) == 1 and checks[0](value[0])
    if tree.node_type is tuple and count == 2:
        first, second = checks
        return lambda value: type(value) is tuple and len(value) == 2 and first(value[0]) and second(value[1])
    node_type, keys = tree.node_type, tree.keys
    if isinstance(node_type, tuple) or issubclass(node_type, dict):  # a tuple: a defaultdict and its factory
        return lambda value: (
            isinstance(value, dict)
            and len(value) == count
            and all(key in value and check(value[key]) for key, check in zip(keys, checks, strict=True))
        )
    if issubclass(node_type, tuple | list):
        return lambda value: (
            type(value) is node_type
            and len(value) == count
            and all(check(child) for check, child in zip(checks, value, strict=True))
        )
    return lambda value: (  # a dataclass
        type(value) is node_type and all(check(getattr(value, key)) for key, check in zip(keys, checks, strict=True))
    )


def flatten_leaves(leaf_ops: LeafOps, value: Any, name: str) -> tuple[list[Any], TreeDef]:
    """The leaves of a value, each an array or a number, or a StepError that names one that is not."""
    leaves, tree = flatten(value, leaf_ops.unpack)
    for leaf, leaf_name in zip(leaves, tree.paths(name), strict=True):
        leaf_ops.spec_of(leaf, leaf_name)
    return leaves, tree


def never_matches(value: Any) -> bool:
    """The predicate before the first value: always False, so that the first value is checked in full."""
    return False
