"""Sequences in time: inputs as one array or as a list with one item a step, outputs with the initial one first."""

from typing import Any

import jax.numpy as jnp
from jax.tree_util import tree_map, tree_structure, treedef_is_leaf

from remat.errors import ProblemError

__all__ = ["stacked", "unpack", "with_first"]


def unpack(value: Any) -> Any:
    """The value itself: JAX wraps no containers."""
    return value


def stacked(inputs: Any, steps: int) -> Any:
    """Inputs with one row for each step: a list or tuple of inputs is stacked, anything else is that already."""
    if type(inputs) not in (list, tuple):
        return inputs
    if len(inputs) != steps:
        raise ProblemError(f"there are {len(inputs)} inputs for {steps} steps")
    if steps == 0:
        return None
    trees: list[Any] = [tree_structure(each) for each in inputs]
    if any(tree != trees[0] for tree in trees):
        raise ProblemError("the inputs of all steps must have the same structure")
    return tree_map(lambda *rows: jnp.stack(rows), *inputs)


def with_first(first: Any, after: Any, steps: int) -> Any:
    """The initial value and those after each step: one array, or a list of them if a value is a container."""
    joined = tree_map(lambda one, rows: jnp.concatenate([jnp.expand_dims(one, 0), rows]), first, after)
    if treedef_is_leaf(tree_structure(first)):
        return joined
    return [tree_map(lambda leaf: leaf[i], joined) for i in range(steps + 1)]  # noqa: B023
