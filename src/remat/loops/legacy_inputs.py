"""Inputs and outputs of the older functions: a list with one input per step; states that include the initial one."""

from collections.abc import Sequence
from typing import Any, Protocol

from remat.errors import ProblemError

__all__ = ["LeafArrays", "stack_inputs", "with_initial"]


class LeafArrays(Protocol):
    """The functions on leaves that a framework offers for these inputs and outputs."""

    def unpack(self, value: Any, /) -> Any:
        """A framework's own container as a plain one; any other value unchanged."""
        ...

    def flatten(self, value: Any, /) -> tuple[list[Any], Any]:
        """The leaves of a value, and its structure, which has `unflatten(leaves)` and can be compared."""
        ...

    def stack(self, rows: Sequence[Any], /) -> Any:
        """Several arrays as one, along a new first axis."""
        ...

    def own(self, leaf: Any, /) -> Any:
        """A copy of a leaf that could be written into; a traced or immutable leaf unchanged."""
        ...

    def separate(self, rows: Any, /) -> Sequence[Any]:
        """The rows of an array or of `SeparateRows` one by one, such that writing into one changes no other."""
        ...

    def prepend(self, first: Any, rows: Any, /) -> Any:
        """An array of rows with one more row before them."""
        ...


def stack_inputs(framework: LeafArrays, inputs: Any, steps: int) -> Any:
    """Inputs with one row for each step: stacks a list or tuple of inputs; anything else is stacked already."""
    inputs = framework.unpack(inputs)
    if type(inputs) not in (list, tuple):
        return inputs
    if len(inputs) != steps:
        raise ProblemError(f"there are {len(inputs)} inputs for {steps} steps")
    if steps == 0:  # there is nothing to stack, not even a shape
        return None
    leaves, structures = zip(*[framework.flatten(value) for value in inputs], strict=True)
    if any(structure != structures[0] for structure in structures):
        raise ProblemError("the inputs of all steps must have the same structure")
    return structures[0].unflatten([framework.stack(rows) for rows in zip(*leaves, strict=True)])


def with_initial(framework: LeafArrays, initial: Any, after: Any, steps: int) -> Any:
    """The initial value and those after each step: one array, or a list with `steps + 1` entries for a container."""
    leaves, structure = framework.flatten(initial)
    rows, _ = framework.flatten(after)
    joined = [framework.prepend(first, others) for first, others in zip(leaves, rows, strict=True)]
    if structure == framework.flatten(0.0)[1]:  # a single leaf
        return joined[0]
    return [structure.unflatten([leaf[i] for leaf in joined]) for i in range(steps + 1)]
