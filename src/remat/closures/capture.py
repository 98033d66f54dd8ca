"""Closure conversion without rewriting the function: values that a step captures become inputs of the loop.

A value in a closure is invisible to a framework's custom gradient. So the references to differentiable values are
searched for (cells, partials, defaults, globals, attributes of objects and of their classes, items of lists and dicts),
their values become inputs of the loop, and `rebind` binds the references to other values while steps run. Cells that
the step only reads get the content that they had when the loop was called, so that a lambda in a Python loop over
layers sees its own layer again in the reverse sweep.

This relies on three facts of CPython, each used in one place of this package:
- `cell.cell_contents` can be assigned (references.CellRef; documented since 3.7);
- `partial.__setstate__` replaces the arguments of a partial in place (references.PartialRef; it is part of pickling);
- `dis` names the instructions that read globals and assign to cells (bytecode.py; opnames may change with a version).
There is no public alternative: `inspect.getclosurevars` and `ast` show the values or the source but cannot rebind a
variable of a function that already exists, and rebuilding the function with `types.FunctionType` would leave every
other reference to it (methods, decorators, objects that hold it) with the old values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from remat.closures.captured_items import merged
from remat.closures.captures import CapturedReference, Captures
from remat.closures.reach import Reach
from remat.closures.references import CellRef, Counters, Reference, exclusive
from remat.pytree import LEAF

__all__ = ["ConvertedClosure"]


class ConvertedClosure:
    """A step as a function of its captured values: `take_values` returns them, `rebind` runs the step with others."""

    def __init__(self, step: Callable[..., Any], reach: Reach, captures: Captures) -> None:
        self.step = step
        self.references, self._values = captures.references(reach.path), captures.values
        self.variables = merged(self.references)
        self.cache_key, self._names = reach.code, reach.names
        rebound = {id(captured.reference) for captured in self.references}
        # Others are contents.
        self._cells = [pair for pair in reach.variables if isinstance(pair[0], CellRef) and id(pair[0]) not in rebound]
        self.counters = Counters(reach.counters)
        self._uncaptured: dict[int, Any] = {}  # by index: values that `restrict_to` took out again
        # Variables that steps bind to something else, with what they referred to before: in place of that they get a
        # value, where a replay has put it back; whatever else is there is the step's own.
        self._rewritten: list[tuple[CapturedReference, Any]] = []

    def mentions(self, name: str) -> bool:
        """Whether a function that was reached, or one inside of it, has this name in its code."""
        return name in self._names

    def take_values(self) -> list[Any]:
        """The captured values; no reference to them is left here, so that no traced value outlives its trace."""
        values, self._values = self._values, []
        return values

    def rebind(self, values: Any) -> AbstractContextManager[Callable[..., Any]]:
        """A block in which the references are bound to `values`, by index; it yields the step."""
        if self._uncaptured:
            values = {**self._uncaptured, **values}
        return self._rebind(values) if self._changes_anything(values) else _Unchanged(self, values)

    @contextmanager
    def _rebind(self, values: Any) -> Iterator[Callable[..., Any]]:
        with exclusive():
            previous: list[tuple[Reference, Any]] = []
            bound: list[tuple[Reference, Any, Any]] = []
            try:
                for cell_reference, content in self._cells:
                    current = cell_reference.get()
                    if current is not content:
                        previous.append((cell_reference, current))
                        cell_reference.put(content)
                for captured in [*self.variables, *self._put_back()]:
                    reference, value = captured.reference, captured.with_values(values)
                    old = reference.get()
                    bound.append((reference, value, old))
                    if value is not old:
                        previous.append((reference, old))
                        reference.put(value)
                yield self.step
            finally:
                rewritten = self.leave_out_rewritten(bound)
                for reference, value in reversed(previous):
                    for part, each in reference.parts(value) if rewritten else ((reference, value),):
                        if id(part) not in rewritten:
                            part.put(each)

    def leave_out_rewritten(self, bound: Sequence[tuple[Reference, Any, Any]]) -> set[int]:
        """Let variables that the step has bound to something else be its own (a cache, a counter): what it wrote stays.

        `bound` has the values that they were bound to, and those before. Returns the ids of these references.
        """
        rewritten = {
            id(part): old
            for reference, value, before in bound
            if reference.was_rewritten(value)
            for (part, each), (_, old) in zip(reference.parts(value), reference.parts(before), strict=True)
            if part.was_rewritten(each)
        }
        if rewritten:
            left_out = [each for each in self.references if id(each.reference) in rewritten]
            self._rewritten += [(each, rewritten[id(each.reference)]) for each in left_out]
            self.references = [each for each in self.references if id(each.reference) not in rewritten]
            self.variables = merged(self.references)
        return {*rewritten}

    def _put_back(self) -> list[CapturedReference]:
        """The rewritten variables that refer to what they did when the loop was called."""
        return [captured for captured, old in self._rewritten if captured.reference.get() is old]

    def _changes_anything(self, values: Any) -> bool:
        """Whether any variable must be rebound; if all have their values already, threads need not wait."""
        # Plain loops: this runs in every op of a loop, where generators would take as long as the rest.
        for cell_reference, content in self._cells:
            if cell_reference.get() is not content:
                return True
        for captured in self.variables:
            # A tuple with captured values is made anew each time, so it is another one in any case.
            if captured.tree is not LEAF or captured.reference.was_rewritten(captured.with_values(values)):
                return True
        return bool(self._rewritten and self._put_back())

    def restrict_to(self, indices: set[int], values: Mapping[int, Any]) -> None:
        """Capture only the values with these indices from now on; `values` are all values that were captured.

        Others in the same tuple as one of these are bound to what they were.
        """
        self.references = [c for c in self.references if any(index in indices for _, index in c.values)]
        self.variables = merged(self.references)
        self._rewritten = [pair for pair in self._rewritten if all(index in indices for _, index in pair[0].values)]
        remaining = {index for captured in self.references for _, index in captured.values}
        self._uncaptured = {index: values[index] for index in remaining - indices}


class _Unchanged(AbstractContextManager[Callable[..., Any]]):
    """A block for variables that have their values already, so that threads need not wait; it yields the step."""

    __slots__ = ("_closure", "_values")

    def __init__(self, closure: ConvertedClosure, values: Any) -> None:
        self._closure, self._values = closure, values

    def __enter__(self) -> Callable[..., Any]:
        return self._closure.step

    def __exit__(self, *exception: object) -> None:
        closure, values = self._closure, self._values
        bound = [(each.reference, each.with_values(values)) for each in closure.variables]
        closure.leave_out_rewritten([(reference, value, value) for reference, value in bound])
