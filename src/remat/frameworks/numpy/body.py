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
        self._matches: Callable[[Any], bool] = lambda y: False

    def row(self, i: int) -> int | None:
        """Where the output of step i goes, or None."""
        return i if self.rows is None else self.rows.get(i)

    def put(self, i: int, y: Any) -> None:
        """Hold the output of step i."""
        row = i if self.rows is None else self.rows.get(i)
        if row is None:
            return
        if self.tree is None:
            self.prepare(y, i)
        quick = self._matches(y)
        if quick and self.tree is LEAF:
            self.leaves[0][row] = y
        elif not quick or self.leaves:
            leaves = self.apart(y, i)
            for stacked, leaf, name in zip(self.leaves, leaves, self.names, strict=True):
                refuse_box(leaf, name)
                stacked[row] = leaf

    def apart(self, y: Any, i: int) -> list[Any]:
        """The leaves of an output, if it is like the first one."""
        assert self.tree is not None
        return checked_apart(self.tree, self.specs, self.names, y, f"y after step {i}")

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
        self._matches: Callable[[Any], bool] = lambda carry: False
        self._settled = False

    def run(self, step: Callable[[Any, Any], Any], carry: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        take, put, matches, y = self.inputs.at, self.outputs.put, self._matches, self.y
        for i in range(start, stop):
            self.at = i
            out = step(carry, take(i))
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
        leaves = checked_apart(self.tree, self.specs, self.names, carry, f"carry after step {i}")
        if not self._settled:
            found = [Spec.of(leaf, name) for leaf, name in zip(leaves, self.names, strict=True)]
            self.specs = [old if new.weak else new for old, new in zip(self.specs, found, strict=True)]
            self._matches, self._settled = matcher(self.tree, self.specs), True
        return leaves


def pair(out: Any, i: int) -> tuple[Any, Any]:
    """What a step returned as (carry, y), or a StepError that says what it is instead."""
    out = unpack(out)
    if type(out) in (tuple, list) and len(out) == 2:
        return out[0], out[1]
    what = f"a {type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple | list) else "")
    raise StepError(
        f"the step must return (carry, y), and step {i} returned {what}; without an output return (carry, None)"
    )


def checked_apart(tree: Tree, specs: list[Spec], names: list[str], value: Any, where: str) -> list[Any]:
    """The leaves of a value that is built like `tree` with leaves like `specs`, or a StepError that names the leaf."""
    root, _, when = where.partition(" ")
    try:
        leaves = tree.apart(value, root, unpack)
    except Mismatch as mismatch:
        raise StepError(
            f"{mismatch} {when}: a step must return its {root} with the structure that "
            f"{'it gets' if root == 'carry' else 'it had at first'}"
        ) from None
    for leaf, spec, name in zip(leaves, specs, names, strict=True):
        plain = getval(leaf)
        if type(plain) is np.ndarray and plain.shape == spec.shape and plain.dtype == spec.dtype:
            continue
        found = Spec.of(leaf, f"{name} {when}")
        if not (spec.gives_way(found) or (found.weak and found.gives_way(spec))):
            cast = f"; cast it, as in {name}.astype({spec.dtype.name!r})" if spec.shape == found.shape else ""
            raise StepError(f"{name} was {spec} and became {found} {when}: shapes and dtypes stay the same{cast}")
    return leaves


def refuse_box(leaf: Any, name: str) -> None:
    """Raise a StepError if a leaf is traced although all that goes into the step is plain."""
    if is_boxed(leaf):
        raise StepError(
            f"{name} is traced by autograd although its step was run on plain arrays: the step uses a traced variable "
            "that remat could not find. Pass it through init or xs, or let the step close over it directly (closures, "
            "partials, attributes of the object of a bound method and globals are searched)"
        )
