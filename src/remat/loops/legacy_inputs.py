"""Sequences in time, on every framework: inputs as a list of steps, outputs with the initial one put first."""

from collections.abc import Callable, Sequence
from typing import Any

from remat.errors import ProblemError
from remat.pytree import flatten

__all__ = ["stacked", "with_first"]


def stacked(
    inputs: Any, steps: int, stack: Callable[[Sequence[Any]], Any], unpack: Callable[[Any], Any] | None = None
) -> Any:
    """Inputs with one row for each step: a list or tuple of inputs is stacked, anything else is that already."""
    if type(inputs) not in (list, tuple):
        return inputs
    if len(inputs) != steps:
        raise ProblemError(f"there are {len(inputs)} inputs for {steps} steps")
    if steps == 0:
        return None
    leaves, trees = zip(*[flatten(value, unpack) for value in inputs], strict=True)
    if any(tree != trees[0] for tree in trees):
        raise ProblemError("the inputs of all steps must have the same structure")
    return trees[0].unflatten([stack(rows) for rows in zip(*leaves, strict=True)])


def with_first(
    first: Any,
    after: Any,
    steps: int,
    join: Callable[[Any, Any], Any],
    unpack: Callable[[Any], Any] | None = None,
) -> Any:
    """The initial value and those after each step: one array, or a list of so many if a value is a container.

    `join` puts one leaf before the rows of the others.
    """
    leaves, tree = flatten(first, unpack)
    rows = tree.flatten_like(after, "visible")
    joined = [join(leaf, others) for leaf, others in zip(leaves, rows, strict=True)]
    if tree.node_type is None:
        return joined[0]
    return [tree.unflatten([leaf[i] for leaf in joined]) for i in range(steps + 1)]
