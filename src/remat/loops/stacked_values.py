"""The inputs `xs` and outputs `ys` of all steps, stacked: leaves with one row for each step."""

from collections.abc import Callable, Sequence
from typing import Any

from remat.errors import ProblemError, StepError
from remat.loops.common_mistakes import LIST_OF_STEPS
from remat.loops.leaf_spec import LeafOps
from remat.loops.structure_check import flatten_checked, never_matches, structure_check
from remat.pytree import LEAF, Leaf, TreeDef, flatten
from remat.units import to_count

__all__ = ["Inputs", "Outputs", "SeparateRows", "infer_length"]


class SeparateRows:
    """An input leaf whose rows are separate arrays: indexed like the stacked array, but without the copy."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int | slice) -> Any:
        return SeparateRows(self.rows[i]) if isinstance(i, slice) else self.rows[i]


class Inputs:
    """The inputs of all steps: leaves with one row for each step; `row(i)` is the input of step i."""

    def __init__(self, leaves: Sequence[Any], tree: TreeDef) -> None:
        self.leaves, self.tree = list(leaves), tree
        # `row` is called once per step: single arrays and loops without inputs get faster functions.
        self.row: Callable[[int], Any] = self._row
        if tree is LEAF:
            only = self.leaves[0]
            self.row = (only.rows if type(only) is SeparateRows else only).__getitem__
        elif not leaves:
            no_input = tree.unflatten(())
            self.row = lambda i: no_input

    def _row(self, i: int) -> Any:
        """The input of step i."""
        return self.tree.unflatten([leaf[i] for leaf in self.leaves])


class Outputs:
    """The outputs of all steps: stacked leaves, allocated when the first output is written.

    With `rows`, a dict from step to row, only the outputs of those steps are kept. With `spare`, each leaf is a view of
    an array with one more row in front, so that the initial value can be written there without copying the others.
    """

    def __init__(
        self, leaf_ops: LeafOps, steps: int, rows: dict[int, int] | None = None, *, spare: bool = False
    ) -> None:
        self.leaf_ops, self.steps, self.rows, self.spare = leaf_ops, steps, rows, spare
        self.tree: TreeDef | None = None
        self.specs: list[Any] = []
        self.names: list[str] = []
        self.leaves: list[Any] = []
        self._matches: Callable[[Any], bool] = never_matches

    def row_of(self, i: int) -> int | None:
        """The row for the output of step i, or None if it is not kept."""
        return i if self.rows is None else self.rows.get(i)

    @property
    def are_none(self) -> bool:
        """Whether the outputs so far are None."""
        return self.tree is not None and self.tree.node_type is type(None)

    def is_empty(self, y: Any) -> bool:
        """Whether `y` has no leaves, like the outputs before it."""
        return self.tree is not None and not self.names and self._matches(y)

    def write(self, i: int, y: Any) -> None:
        """Write the output of step i into its row."""
        row = self.row_of(i)
        if row is None:
            return
        if self.tree is None:
            self.allocate(y, i)
        if not self._matches(y):
            # Either this raises, or `y` has numbers where arrays are expected, which the assignment below converts.
            for leaf, name in zip(self.checked_leaves(y, i), self.names, strict=True):
                self.leaf_ops.reject_tracer(leaf, name)
        if self.tree is LEAF:  # the most common output, without the cost of flattening
            self.leaves[0][row] = y
        elif self.leaves:
            assert self.tree is not None
            for stacked, leaf in zip(self.leaves, self.tree.flatten_like(y, "y", self.leaf_ops.unpack), strict=True):
                stacked[row] = leaf

    def checked_leaves(self, y: Any, i: int) -> list[Any]:
        """The leaves of the output of step i, or a StepError if it differs from the first output.

        Where earlier outputs were Python numbers and this one is an array, the stacked leaves get its dtype.
        """
        assert self.tree is not None
        leaves, specs = flatten_checked(self.leaf_ops, self.tree, self.specs, self.names, y, "y", i)
        if specs != self.specs:
            self.leaves = [self.leaf_ops.astype(rows, spec) for rows, spec in zip(self.leaves, specs, strict=True)]
            self.specs, self._matches = specs, structure_check(self.leaf_ops, self.tree, specs)
        return leaves

    def take_leaves(self) -> list[Leaf]:
        """Return the stacked leaves, and keep no reference to them."""
        leaves, self.leaves = self.leaves, []
        return leaves

    def allocate(self, y: Any, i: int) -> None:
        """Allocate stacked leaves for outputs like `y`, which step i returned."""
        leaf_ops = self.leaf_ops
        leaves, self.tree = flatten(y, leaf_ops.unpack)
        self.names = list(self.tree.paths("y"))
        self.specs = [
            leaf_ops.spec_of(leaf, f"{name}, which step {i} returned,")
            for leaf, name in zip(leaves, self.names, strict=True)
        ]
        count = self.steps if self.rows is None else len(self.rows)
        spare = int(self.spare)
        rows = [leaf_ops.empty(count + spare, spec, leaf) for spec, leaf in zip(self.specs, leaves, strict=True)]
        # A view only if needed: PyTorch does not allow writing into a view that a function returns.
        self.leaves = [leaf[1:] for leaf in rows] if self.spare else rows
        self._matches = structure_check(leaf_ops, self.tree, self.specs)


def infer_length(leaf_ops: LeafOps, leaves: Sequence[Any], tree: TreeDef, length: int | None) -> int:
    """The number of steps that all inputs and `length` agree on."""
    counts = {} if length is None else {"length": to_count(length, "length")}  # by name, for messages
    for leaf, name in zip(leaves, tree.paths("xs"), strict=True):
        shape = leaf_ops.spec_of(leaf, name).shape
        if not shape:
            raise StepError(
                f"{name} is a single number: the leaves of xs have one row for each step. A list is a "
                "container of inputs: if it has one entry for each step give an array, such as numpy.array(xs)"
            )
        counts[name] = shape[0]
    if not counts:
        raise ProblemError("the number of steps is not known: give xs, or length= if there are none")
    if len(set(counts.values())) > 1:
        said_by = ", ".join(f"{name} says {count}" for name, count in list(counts.items())[:6])
        rows = {count for name, count in counts.items() if name != "length"}
        # Arrays that differ in length are not meant as one entry for each step.
        hint = f"; {LIST_OF_STEPS}" if len(rows) == 1 and tree.node_type in (list, tuple) else ""
        raise ProblemError(
            f"the number of steps is not clear: {said_by}; every leaf of xs has one row for each step{hint}"
        )
    steps = next(iter(counts.values()))
    if steps == 0:  # only a step that runs shows the shapes of its outputs
        raise ProblemError(
            f"a loop of 0 steps has no outputs, not even their shapes ({next(iter(counts))} has no rows): the result "
            "would be init itself, so leave the call out where there are no steps"
        )
    return steps
