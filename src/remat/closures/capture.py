"""Closure conversion without rewriting the function: the values that a step captures become inputs of the loop.

A framework's custom gradient does not see the values in a closure. So we search for the references to differentiable
values (cells, partials, defaults, globals, attributes of objects and of their classes, items of lists and dicts), make
their values inputs of the loop, and `rebind` the references to other values while steps run. Cells that the step only
reads are reset to the content that they had when the loop was called, so that a lambda in a Python loop over layers
sees its own layer again in the reverse sweep.

This relies on three facts about CPython, each used in one place of this package:
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
    """A step as a function of its captured values: `take_values` returns them, `rebind` replaces them in a context."""

    def __init__(self, step: Callable[..., Any], reach: Reach, captures: Captures) -> None:
        self.step = step
        self.references, self._values = captures.references(reach.path), captures.values
        self.variables = merged(self.references)
        self.cache_key, self._names = reach.code, reach.names
        rebound = {id(captured.reference) for captured in self.references}
        # Other variables are contents (python_state.Variable).
        self._cells = [pair for pair in reach.variables if isinstance(pair[0], CellRef) and id(pair[0]) not in rebound]
        self.counters = Counters(reach.counters)
        self._uncaptured: dict[int, Any] = {}  # by index: values that `restrict_to` excluded
        # Variables that steps assign to, with their values before. They are rebound only if a replay has restored
        # that value; any other value is the step's own.
        self._rewritten: list[tuple[CapturedReference, Any]] = []

    def mentions(self, name: str) -> bool:
        """Whether the code of a function that was reached, or of one inside it, has this name."""
        return name in self._names

    def take_values(self) -> list[Any]:
        """Return the captured values and forget them, so that no traced value outlives its trace."""
        values, self._values = self._values, []
        return values

    def rebind(self, values: Any) -> AbstractContextManager[Callable[..., Any]]:
        """A context in which the references are bound to `values`, by index; it yields the step."""
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
        """Stop rebinding variables that the step has assigned to (a cache, a counter): what it wrote stays.

        `bound` has, for each reference, the value that it was bound to and the one before. Returns the ids of the
        references that were assigned to.
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
        """The rewritten variables that have the same value again as when the loop was called."""
        return [captured for captured, old in self._rewritten if captured.reference.get() is old]

    def _changes_anything(self, values: Any) -> bool:
        """Whether any variable must be rebound; if all have their values already, no lock is needed."""
        # Plain loops: this runs in every op of a loop, and generator expressions would double its time.
        for cell_reference, content in self._cells:
            if cell_reference.get() is not content:
                return True
        for captured in self.variables:
            # A tuple with captured values is rebuilt each time, so it is never the same object.
            if captured.tree is not LEAF or captured.reference.was_rewritten(captured.with_values(values)):
                return True
        return bool(self._rewritten and self._put_back())

    def restrict_to(self, indices: set[int], values: Mapping[int, Any]) -> None:
        """Capture only the values with these indices from now on; `values` are all values that were captured.

        Other values in the same tuple as one of these are rebound to themselves.
        """
        self.references = [c for c in self.references if any(index in indices for _, index in c.values)]
        self.variables = merged(self.references)
        self._rewritten = [pair for pair in self._rewritten if all(index in indices for _, index in pair[0].values)]
        remaining = {index for captured in self.references for _, index in captured.values}
        self._uncaptured = {index: values[index] for index in remaining - indices}


class _Unchanged(AbstractContextManager[Callable[..., Any]]):
    """A context for variables that have their values already, which takes no lock; it yields the step."""

    __slots__ = ("_closure", "_values")

    def __init__(self, closure: ConvertedClosure, values: Any) -> None:
        self._closure, self._values = closure, values

    def __enter__(self) -> Callable[..., Any]:
        return self._closure.step

    def __exit__(self, *exception: object) -> None:
        closure, values = self._closure, self._values
        bound = [(each.reference, each.with_values(values)) for each in closure.variables]
        closure.leave_out_rewritten([(reference, value, value) for reference, value in bound])
