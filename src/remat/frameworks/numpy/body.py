"""The body of a loop: the user's step, run on plain arrays, with what it returns held against what it must be.

In: carries and the inputs `xs`. Out: carries, and the outputs `ys`, written once into arrays made for all steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from autograd.tracer import getval

from remat.errors import StepError
from remat.execute.tree import LEAF, Mismatch, Tree, take_apart
from remat.frameworks.numpy.leaves import Spec, is_boxed, matcher, protected, unpack

__all__ = ["Body", "Inputs", "Outputs", "checked_apart", "pair"]


class Inputs:
    """The inputs of all steps: leaves with a leading axis of n; `at(i)` is the input of step i."""

    def __init__(self, leaves: Sequence[Any], tree: Tree) -> None:
        self.leaves, self.tree = [protected(leaf) for leaf in leaves], tree
        self.at: Callable[[int], Any] = self._at
        if tree is LEAF:
            self.at = self.leaves[0].__getitem__
        elif not leaves:
            nothing = tree.build(())
            self.at = lambda i: nothing

    def _at(self, i: int) -> Any:
        """The input of step i, which no step can write into."""
        return self.tree.build([leaf[i] for leaf in self.leaves])


class Outputs:
    """The outputs of all steps, or of those that `rows` names: stacked leaves, made when the first one comes."""

    def __init__(self, steps: int, rows: dict[int, int] | None = None) -> None:
        self.steps, self.rows = steps, rows
        self.tree: Tree | None = None
        self.specs: list[Spec] = []
        self.names: list[str] = []
        self.leaves: list[np.ndarray[Any, Any]] = []
        self._matches: Callable[[Any], bool] = _never

    def row(self, i: int) -> int | None:
        """Where the output of step i goes, or None."""
        return i if self.rows is None else self.rows.get(i)

    def put(self, i: int, y: Any) -> None:
        """Hold the output of step i."""
        row = self.row(i)
        if row is None:
            return
        if self.tree is None:
            self.prepare(y, i)
        if not self._matches(y):
            for leaf, name in zip(self.apart(y, i), self.names, strict=True):
                refuse_box(leaf, name)
        if self.tree is LEAF:
            self.leaves[0][row] = y
        elif self.leaves:
            assert self.tree is not None
            for stacked, leaf in zip(self.leaves, self.tree.apart(y, "y", unpack), strict=True):
                stacked[row] = leaf

    def apart(self, y: Any, i: int) -> list[Any]:
        """The leaves of an output, if it is like the first one; arrays give way where that was a Python number."""
        assert self.tree is not None
        leaves, specs = checked_apart(self.tree, self.specs, self.names, y, f"y after step {i}")
        if specs != self.specs:
            self.leaves = [held.astype(spec.dtype) for held, spec in zip(self.leaves, specs, strict=True)]
            self.specs, self._matches = specs, matcher(self.tree, specs)
        return leaves

    def prepare(self, y: Any, i: int) -> None:
        """Make room for outputs like this one."""
        leaves, self.tree = take_apart(y, unpack)
        self.names = list(self.tree.names("y"))
        self.specs = [
            Spec.of(leaf, f"{name}, which step {i} returned,") for leaf, name in zip(leaves, self.names, strict=True)
        ]
        count = self.steps if self.rows is None else len(self.rows)
        self.leaves = [np.empty((count, *spec.shape), spec.dtype) for spec in self.specs]
        self._matches = matcher(self.tree, self.specs)


class Body:
    """Runs steps of one loop on plain arrays; `y` is what the last one put out."""

    def __init__(self, carry: Tree, specs: list[Spec], inputs: Inputs, outputs: Outputs) -> None:
        self.tree, self.specs, self.inputs, self.outputs = carry, specs, inputs, outputs
        self.names = list(carry.names("carry"))
        self.done = 0  # steps whose outputs are written
        self.at = 0  # the step that runs
        self.y: Any = None
        self._matches: Callable[[Any], bool] = _never  # until a carry has come back

    def run(self, step: Callable[[Any, Any], Any], carry: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        take, put, matches, y = self.inputs.at, self.outputs.put, self._matches, self.y
        for i in range(start, stop):
            self.at = i
            try:
                out = step(carry, take(i))
            except Exception as error:
                self.add_note(error, carry)
                raise
            if type(out) is tuple and len(out) == 2:
                carry, y = out
            else:
                carry, y = pair(out, i)
            if not matches(carry):
                for leaf, name in zip(self.settle(carry, i), self.names, strict=True):
                    refuse_box(leaf, name)
                matches = self._matches
            if i >= self.done:
                put(i, y)
                self.done = i + 1
        self.y = y
        return carry

    def settle(self, carry: Any, i: int) -> list[Any]:
        """The leaves of a carry that step i returned, if it is as it must be; the first one says how the others are."""
        leaves, specs = checked_apart(self.tree, self.specs, self.names, carry, f"carry after step {i}")
        if specs is not self.specs or self._matches is _never:
            self.specs, self._matches = specs, matcher(self.tree, specs)
        return leaves

    def add_note(self, error: Exception, carry: Any) -> None:
        """Say in which step an error of the user's came, and what went into the step."""
        try:
            looks = [
                f"{name} {Spec.of(leaf, name)}"
                for value, tree, root in ((carry, self.tree, "carry"), (self.inputs.at(self.at), self.inputs.tree, "x"))
                for leaf, name in zip(tree.apart(value, root, unpack), tree.names(root), strict=True)
            ]
        except Exception:  # the error matters, not what can be said of it
            looks = []
        error.add_note(
            f"in step {self.at} of a loop that remat runs, step(carry, x) with {', '.join(looks) or 'no arrays'}"
        )


def _never(value: Any) -> bool:
    return False


def pair(out: Any, i: int) -> tuple[Any, Any]:
    """What a step returned as (carry, y), or a StepError that says what it is instead."""
    out = unpack(out)
    if type(out) in (tuple, list) and len(out) == 2:
        return out[0], out[1]
    what = "None" if out is None else f"a {type(out).__name__}"
    what += f" of {len(out)}" if isinstance(out, tuple | list) else ""
    raise StepError(
        f"the step must return (carry, y), and step {i} returned {what}; without an output return (carry, None)"
    )


def checked_apart(
    tree: Tree, specs: list[Spec], names: list[str], value: Any, where: str
) -> tuple[list[Any], list[Spec]]:
    """The leaves of a value that is built like `tree` with leaves like `specs`, or a StepError that names the leaf.

    The specs come back too, with what Python numbers have become.
    """
    root, _, when = where.partition(" ")
    try:
        leaves = tree.apart(value, root, unpack)
    except Mismatch as mismatch:
        raise StepError(
            f"{mismatch} {when}: a step must return its {root} with the structure that "
            f"{'it gets' if root == 'carry' else 'it had at first'}"
        ) from None
    for k, (leaf, spec, name) in enumerate(zip(leaves, specs, names, strict=True)):
        plain = getval(leaf)
        if type(plain) is np.ndarray and plain.shape == spec.shape and plain.dtype == spec.dtype:
            continue
        found = Spec.of(leaf, f"{name} {when}")
        if not (spec.gives_way(found) or (found.weak and found.gives_way(spec))):
            advice = ""
            if spec.shape == found.shape and spec.rank < found.rank:
                advice = f"; start with {found.dtype.name}"
            elif spec.shape == found.shape:
                advice = f"; cast it, as in {name}.astype({spec.dtype.name!r})"
            raise StepError(f"{name} was {spec} and became {found} {when}: shapes and dtypes stay the same{advice}")
        if spec.weak and found != spec:
            specs = [*specs[:k], spec.kept_up(found), *specs[k + 1 :]]
    return leaves, specs


def refuse_box(leaf: Any, name: str) -> None:
    """Raise a StepError if a leaf is traced although all that goes into the step is plain."""
    if is_boxed(leaf):
        raise StepError(
            f"{name} is still traced by autograd where it must not be: the step uses a traced variable that remat "
            "could not find, or something made from one in another call of it (a cache, a cached_property, a log). "
            "Compute it in every call or before the loop, and pass it through init or xs, or close over it directly: "
            "closures, partials, attributes, items of lists and dicts, and globals are searched"
        )
