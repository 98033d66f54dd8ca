"""The body of a loop: the user's step, run on plain values, with what it returns held against what it must be.

In: carries and the inputs `xs`. Out: carries, and the outputs `ys`, written once into arrays made for all steps. What
a leaf is, a framework says: its module of leaves is handed in.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from remat.errors import ProblemError, StepError
from remat.execute.recomputation import recomputing
from remat.pytree import LEAF, StructureMismatch, TreeDef, flatten
from remat.units import to_count

__all__ = [
    "Inputs",
    "LeafOps",
    "LeafSpec",
    "Outputs",
    "StepRunner",
    "flatten_checked",
    "flatten_leaves",
    "infer_length",
    "unpack_output",
]


class LeafSpec(Protocol):
    """What a leaf looks like."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def weak(self) -> bool:
        """Whether it is a Python number, whose dtype gives way to another."""
        ...

    def promotes_to(self, other: Any) -> bool:
        """Whether a leaf that looks like `other` may follow this one."""
        ...

    def promoted(self, other: Any) -> Any:
        """What to hold later values against, when one like `other` has followed."""
        ...

    def advice(self, other: Any, name: str) -> str:
        """What to do if one like `other` follows and must not."""
        ...


class LeafOps(Protocol):
    """The module of a framework that knows its leaves."""

    def unpack(self, value: Any, /) -> Any:
        """The framework's own containers as plain ones."""
        ...

    def spec_of(self, leaf: Any, name: str, /) -> Any:
        """The looks of a leaf; what is none raises a StepError that names it."""
        ...

    def matches_spec(self, leaf: Any, looks: Any, /) -> bool:
        """Whether a leaf looks exactly like that; False where it takes a closer look to say."""
        ...

    def fast_match(self, looks: Any, /) -> Callable[[Any], bool]:
        """A fast test for leaves that look like that and may be used as they are."""
        ...

    def empty(self, count: int, looks: Any, like: Any, /) -> Any:
        """Room for so many leaves that look like that; `like` is one of them."""
        ...

    def astype(self, held: Any, looks: Any, /) -> Any:
        """Leaves that were put together, as many of those looks."""
        ...

    def reject_tracer(self, leaf: Any, name: str, /) -> None:
        """Raise a StepError if a leaf is traced although all that goes into the step is plain."""
        ...


class Inputs:
    """The inputs of all steps: leaves with a leading axis of n; `row(i)` is the input of step i."""

    def __init__(self, leaves: Sequence[Any], tree: TreeDef) -> None:
        self.leaves, self.tree = list(leaves), tree
        self.row: Callable[[int], Any] = self._row
        if tree is LEAF:
            self.row = self.leaves[0].__getitem__
        elif not leaves:
            nothing = tree.unflatten(())
            self.row = lambda i: nothing

    def _row(self, i: int) -> Any:
        """The input of step i."""
        return self.tree.unflatten([leaf[i] for leaf in self.leaves])


class Outputs:
    """The outputs of all steps, or of those that `rows` names: stacked leaves, made when the first one comes."""

    def __init__(self, leaf_ops: LeafOps, steps: int, rows: dict[int, int] | None = None) -> None:
        self.leaf_ops, self.steps, self.rows = leaf_ops, steps, rows
        self.tree: TreeDef | None = None
        self.specs: list[Any] = []
        self.names: list[str] = []
        self.leaves: list[Any] = []
        self._matches: Callable[[Any], bool] = _never

    def row_of(self, i: int) -> int | None:
        """Where the output of step i goes, or None."""
        return i if self.rows is None else self.rows.get(i)

    def is_empty(self, y: Any) -> bool:
        """Whether an output is one without leaves, as all are then."""
        return self.tree is not None and not self.names and self._matches(y)

    def write(self, i: int, y: Any) -> None:
        """Hold the output of step i."""
        row = self.row_of(i)
        if row is None:
            return
        if self.tree is None:
            self.allocate(y, i)
        if not self._matches(y):
            for leaf, name in zip(self.apart(y, i), self.names, strict=True):
                self.leaf_ops.reject_tracer(leaf, name)
        if self.tree is LEAF:
            self.leaves[0][row] = y
        elif self.leaves:
            assert self.tree is not None
            for stacked, leaf in zip(self.leaves, self.tree.flatten_like(y, "y", self.leaf_ops.unpack), strict=True):
                stacked[row] = leaf

    def apart(self, y: Any, i: int) -> list[Any]:
        """The leaves of an output, if it is like the first one; arrays give way where that was a Python number."""
        assert self.tree is not None
        leaves, specs = flatten_checked(self.leaf_ops, self.tree, self.specs, self.names, y, f"y after step {i}")
        if specs != self.specs:
            self.leaves = [self.leaf_ops.astype(held, spec) for held, spec in zip(self.leaves, specs, strict=True)]
            self.specs, self._matches = specs, structure_check(self.leaf_ops, self.tree, specs)
        return leaves

    def allocate(self, y: Any, i: int) -> None:
        """Make room for outputs like this one."""
        leaf_ops = self.leaf_ops
        leaves, self.tree = flatten(y, leaf_ops.unpack)
        self.names = list(self.tree.paths("y"))
        self.specs = [
            leaf_ops.spec_of(leaf, f"{name}, which step {i} returned,")
            for leaf, name in zip(leaves, self.names, strict=True)
        ]
        count = self.steps if self.rows is None else len(self.rows)
        self.leaves = [leaf_ops.empty(count, spec, leaf) for spec, leaf in zip(self.specs, leaves, strict=True)]
        self._matches = structure_check(leaf_ops, self.tree, self.specs)


class StepRunner:
    """Runs steps of one loop on plain values; `y` is what the last one put out."""

    def __init__(
        self, leaf_ops: LeafOps, carry: TreeDef, specs: Sequence[Any], inputs: Inputs, outputs: Outputs
    ) -> None:
        self.leaf_ops, self.tree, self.specs, self.inputs, self.outputs = leaf_ops, carry, list(specs), inputs, outputs
        self.names = list(carry.paths("carry"))
        self.outputs_written = 0  # steps whose outputs are written
        self.current_step = 0  # the step that runs
        self.last_output: Any = None
        self.matches: Callable[[Any], bool] = _never  # until a carry has come back

    def run(self, step: Callable[[Any, Any], Any], carry: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        take, write, matches, y = self.inputs.row, self.outputs.write, self.matches, self.last_output
        with recomputing(self.outputs_written > start):
            for i in range(start, stop):
                self.current_step = i
                try:
                    out = step(carry, take(i))
                except Exception as error:
                    self.add_note(error, carry)
                    raise
                if type(out) is tuple and len(out) == 2:
                    carry, y = out
                else:
                    carry, y = unpack_output(self.leaf_ops, out, i)
                if not matches(carry):
                    for leaf, name in zip(self.check_carry(carry, i), self.names, strict=True):
                        self.leaf_ops.reject_tracer(leaf, name)
                    matches = self.matches
                if i >= self.outputs_written:
                    write(i, y)
                    self.outputs_written = i + 1
        self.last_output = y
        return carry

    def check_carry(self, carry: Any, i: int) -> list[Any]:
        """The leaves of a carry that step i returned, if it is as it must be; the first one says how the others are."""
        leaves, specs = flatten_checked(
            self.leaf_ops, self.tree, self.specs, self.names, carry, f"carry after step {i}"
        )
        if specs is not self.specs or self.matches is _never:
            self.specs, self.matches = specs, structure_check(self.leaf_ops, self.tree, specs)
        return leaves

    def observed(self, carry: Any) -> list[Any]:
        """The leaves of a carry, and those of the last output where every step puts one out."""
        leaves = self.tree.flatten_like(carry, "carry")
        if self.outputs.tree is not None and self.outputs.rows is None:
            leaves += self.outputs.tree.flatten_like(self.last_output, "y")
        return leaves

    def add_note(self, error: Exception, carry: Any) -> None:
        """Say in which step an error of the user's came, and what went into the step."""
        try:
            looks = [
                f"{name} {self.leaf_ops.spec_of(leaf, name)}"
                for value, tree, root in (
                    (carry, self.tree, "carry"),
                    (self.inputs.row(self.current_step), self.inputs.tree, "x"),
                )
                for leaf, name in zip(
                    tree.flatten_like(value, root, self.leaf_ops.unpack), tree.paths(root), strict=True
                )
            ]
        except Exception:  # the error matters, not what can be said of it
            looks = []
        shown = ", ".join(looks[:8]) + (f" and {len(looks) - 8} more" if len(looks) > 8 else "")
        note = f"in step {self.current_step} of a loop that remat runs, step(carry, x) with {shown or 'no arrays'}"
        if self.inputs.tree.node_type in (list, tuple) and self.current_step == 0:
            note += f"; x is a {self.inputs.tree.describe()[2:]}, as xs is: stack a list with one entry for each step"
        error.add_note(note)


def _never(value: Any) -> bool:
    return False


def unpack_output(leaf_ops: LeafOps, out: Any, i: int) -> tuple[Any, Any]:
    """What a step returned as (carry, y), or a StepError that says what it is instead."""
    out = leaf_ops.unpack(out)
    if type(out) in (tuple, list) and len(out) == 2:
        return out[0], out[1]
    what = "None" if out is None else f"a {type(out).__name__}"
    what += f" of {len(out)}" if isinstance(out, tuple | list) else ""
    raise StepError(
        f"the step must return (carry, y), and step {i} returned {what}; without an output return (carry, None)"
    )


def flatten_checked(
    leaf_ops: LeafOps, tree: TreeDef, specs: list[Any], names: list[str], value: Any, where: str
) -> tuple[list[Any], list[Any]]:
    """The leaves of a value that is built like `tree` with leaves like `specs`, or a StepError that names the leaf.

    The specs come back too, with what Python numbers have become.
    """
    root, _, when = where.partition(" ")
    try:
        leaves = tree.flatten_like(value, root, leaf_ops.unpack)
    except StructureMismatch as mismatch:
        raise StepError(
            f"{mismatch} {when}: a step must return its {root} with the structure that "
            f"{'it gets' if root == 'carry' else 'it had at first'}"
        ) from None
    for k, (leaf, spec, name) in enumerate(zip(leaves, specs, names, strict=True)):
        if leaf_ops.matches_spec(leaf, spec):
            continue
        found = leaf_ops.spec_of(leaf, f"{name} {when}")
        if not (spec.promotes_to(found) or (found.weak and found.promotes_to(spec))):
            advice = spec.advice(found, name)
            raise StepError(f"{name} was {spec} and became {found} {when}: shapes and dtypes stay the same{advice}")
        if spec.weak and found != spec:
            specs = [*specs[:k], spec.promoted(found), *specs[k + 1 :]]
    return leaves, specs


def structure_check(leaf_ops: LeafOps, tree: TreeDef, specs: list[Any]) -> Callable[[Any], bool]:
    """A fast test for values of this structure with leaves like these."""
    return _structure_check(leaf_ops, tree, iter(specs))


def _structure_check(leaf_ops: LeafOps, tree: TreeDef, specs: Any) -> Callable[[Any], bool]:
    if tree.node_type is None:
        return leaf_ops.fast_match(next(specs))
    if tree.node_type is type(None):
        return lambda value: value is None
    below = [_structure_check(leaf_ops, part, specs) for part in tree.children]
    count = len(below)
    if tree.node_type is tuple and count == 1:
        return lambda value: type(value) is tuple and len(value) == 1 and below[0](value[0])
    if tree.node_type is tuple and count == 2:
        one, two = below
        return lambda value: type(value) is tuple and len(value) == 2 and one(value[0]) and two(value[1])
    kind, keys = tree.node_type, tree.keys
    if isinstance(kind, tuple) or issubclass(kind, dict):
        return lambda value: (
            isinstance(value, dict)
            and len(value) == count
            and all(key in value and f(value[key]) for key, f in zip(keys, below, strict=True))
        )
    if issubclass(kind, tuple | list):
        return lambda value: (
            type(value) is kind and len(value) == count and all(f(v) for f, v in zip(below, value, strict=True))
        )
    return lambda value: type(value) is kind and all(f(getattr(value, key)) for key, f in zip(keys, below, strict=True))


def flatten_leaves(leaf_ops: LeafOps, value: Any, name: str) -> tuple[list[Any], TreeDef]:
    """The leaves of a value, each an array or a number, or a StepError that names one that is not."""
    leaves, tree = flatten(value, leaf_ops.unpack)
    for leaf, leaf_name in zip(leaves, tree.paths(name), strict=True):
        leaf_ops.spec_of(leaf, leaf_name)
    return leaves, tree


def infer_length(leaf_ops: LeafOps, leaves: Sequence[Any], tree: TreeDef, length: int | None) -> int:
    """The number of steps that all inputs and `length` agree on."""
    said = None if length is None else to_count(length, "length")
    found = {} if said is None else {"length": said}
    for leaf, name in zip(leaves, tree.paths("xs"), strict=True):
        shape = leaf_ops.spec_of(leaf, name).shape
        if not shape:
            raise StepError(
                f"{name} is a single number: the leaves of xs have one row for each step. A list is taken for a "
                "container of inputs: give an array of a list with one entry for each step"
            )
        found[name] = shape[0]
    if not found:
        raise ProblemError("the number of steps is not known: give xs, or length= if there are none")
    if len(set(found.values())) > 1:
        said_by = ", ".join(f"{name} says {count}" for name, count in list(found.items())[:6])
        hint = "; a list is taken for a container of inputs: stack a list with one entry for each step"
        raise ProblemError(
            f"the number of steps is not clear: {said_by}; every leaf of xs has one row for each step"
            + (hint if tree.node_type in (list, tuple) else "")
        )
    steps = next(iter(found.values()))
    if steps == 0:
        raise ProblemError(
            f"a loop of 0 steps has no outputs, not even their shapes ({next(iter(found))} has no rows): the result "
            "would be init itself, so leave the call out where there are no steps"
        )
    return steps
