"""The items of a `for` loop, by number: taken all at once where that is safe, otherwise one by one, and held.

In: the iterable of a loop. Out: `Items`. A turn may be rerun, so an item is taken once and kept. Ranges, arrays, lists,
dict views, and `zip`, `enumerate`, `reversed` and products of these have a known length. Other iterators are taken
lazily if a turn may end the loop, so that infinite ones work, and otherwise ahead of the turns, since their items may
be differentiated. An iterator that draws random numbers, or changes an object that the step reaches, is refused:
recomputed steps would not see that. So is one that is ahead of turns which change an object, since it may read it.
What the iterator prints is held back until the turn of its item.
"""

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from remat.errors import StepError
from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.source.marked_range import MarkedRange
from remat.source.run_time.speech import Calls, held

__all__ = ["Combined", "Items", "Product", "is_iterator", "is_taken_from", "items_of", "lookup"]

_SIZED: tuple[type, ...] = (
    list,
    tuple,
    str,
    bytes,
    set,
    frozenset,
    dict,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_ITERABLES: list[Any] = [range(0), range(2**100), [], (), "", b"", set(), {}, {}.values(), {}.items(), reversed([])]
_PURE = (*(type(iter(each)) for each in _ITERABLES), type(reversed({})))


class Combined:
    """`zip` or `enumerate`, which knows its parts."""

    __slots__ = ("arguments", "call", "options")

    def __init__(self, call: Callable[..., Iterator[Any]], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.call, self.arguments, self.options = call, arguments, options

    def __iter__(self) -> Iterator[Any]:
        return self.call(*self.arguments, **self.options)


class Product:
    """The pairs of a perfect nest; the inner iterable is made in the first turn of the outer loop, as in Python.

    `is_sized` says whether both are ranges. If `range` is a function of the user's, pairs are taken one by one.
    """

    __slots__ = ("_make", "inner", "is_sized", "outer")

    def __init__(self, outer: Any, make: Callable[[], Any]) -> None:
        self.outer, self._make = outer, make
        self.is_sized = _is_sized(outer)
        self.inner: Any = make() if self.is_sized and len(outer) else range(0)
        self.is_sized = self.is_sized and _is_sized(self.inner)

    def __iter__(self) -> Iterator[Any]:
        for k, one in enumerate(self.outer):
            inner = self.inner if self.is_sized or (k == 0 and _is_sized(self.outer)) else self._make()
            for other in inner:
                yield one, other

    def __len__(self) -> int:
        return len(self.outer) * len(self.inner)

    def __getitem__(self, k: int) -> Any:
        outer, inner = divmod(k, len(self.inner))
        return self.outer[outer], self.inner[inner]


def _is_sized(value: Any) -> bool:
    return isinstance(value, range | MarkedRange) or (isinstance(value, Product) and value.is_sized)


class Items:
    """The items of a loop: `at(k)` is item k, `count` their number, None until it is known.

    `stacked` has the items as arrays or ranges, the inputs of a scan; if it is None, a step looks items up. An
    exception in an iterator ends the items; `end()` raises it where the loop itself would get the next item.
    """

    __slots__ = ("_error", "_held", "_rest", "_said", "count", "rows", "stacked", "states")

    def __init__(self, rows: Sequence[Any] | None, rest: Iterator[Any] | None = None, stacked: Any = None) -> None:
        self._held: list[Any] = []
        self._rest = rest
        self._error: Exception | None = None
        self._said: dict[int, Calls] = {}  # by item: what the iterator wrote before it gave the item
        self.count = None if rows is None else len(rows)
        self.rows = rows  # None for lazy items
        self.stacked = stacked
        self.states: Sequence[ReplayableState] = global_rng_states()  # what an iterator must not change

    @property
    def are_numbers(self) -> bool:
        """Whether all items are numbers of ranges, or tuples of such, so that no item has a gradient."""
        return _are_ranges(self.rows)

    def at(self, k: int) -> Any:
        """Item k, which must exist."""
        return self._held[k] if self.rows is None else self.rows[k]

    def before(self, stop: int) -> Sequence[Any]:
        """All items, or if they are lazy, those before number `stop`, which must exist."""
        if self.rows is not None:
            return self.rows
        self.has(stop - 1)
        return tuple(self._held)

    def has(self, k: int) -> bool:
        """Whether there is an item k; lazy items are taken up to it."""
        if self.count is not None:
            return k < self.count
        assert self._rest is not None
        while len(self._held) <= k:
            before = [state.version() for state in self.states]
            item = self._next()
            if self.count is not None:
                return False
            if before != [state.version() for state in self.states]:
                raise StepError(
                    "the iterator of the loop draws random numbers, or changes an object that the loop uses, which "
                    "recomputed iterations could not see: make a list of it before the loop"
                )
            self._held.append(item)
        return True

    def _next(self) -> Any:
        """The next item; None if there is no more."""
        assert self._rest is not None
        calls: Calls = []
        try:
            return held(calls, next, self._rest)
        except Exception as error:
            self.count, self._error = len(self._held), None if isinstance(error, StopIteration) else error
            return None
        finally:
            if calls:
                self._said[len(self._held)] = calls

    def said(self, k: int) -> Calls:
        """What the iterator wrote before it gave item k, or before it ended after k items."""
        return self._said.get(k, [])

    @property
    def has_said(self) -> bool:
        """Whether the iterator has written anything."""
        return bool(self._said)

    def release(self) -> None:
        """Take no further items, and let go of the iterator."""
        if self.rows is None:
            self.count = len(self._held)
        self._rest = None

    def end(self) -> None:
        """Called after the last item: raise the iterator's exception, if there was one."""
        if self._error is not None:
            raise self._error

    @property
    def is_pure(self) -> bool:
        """Whether taking the items at once has the same effect as taking them one by one."""
        return self._rest is None or _is_pure(self._rest)

    def take_all(self) -> "Items":
        """Take all items, for a loop that no turn ends early; an exception is raised after the turns before it."""
        if self.rows is not None:
            return self
        k = 0
        while self.has(k):
            k += 1
        taken = Items(tuple(self._held))
        taken._error, taken._said = self._error, self._said
        return taken


class _Rows:
    """Rows of several parts, as tuples, up to the shortest."""

    __slots__ = ("count", "parts")

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self.parts, self.count = parts, min(map(len, parts), default=0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        return tuple(part[k] for part in self.parts)


def _are_ranges(rows: Any) -> bool:
    if isinstance(rows, _Rows | Product):
        return all(map(_are_ranges, rows.parts if isinstance(rows, _Rows) else (rows.outer, rows.inner)))
    return isinstance(rows, range)


def lookup(rows: Any) -> Callable[[int], Any]:
    """A function from a number to an item, with the rows in its closure, so that traced values are found."""
    if isinstance(rows, _Rows):
        parts = tuple(map(lookup, rows.parts))
        return lambda k: tuple(part(k) for part in parts)
    return lambda k: rows[k]


def items_of(iterable: Any, is_array: Callable[[Any], bool]) -> Items:
    """The items of an iterable; `is_array` recognizes arrays of the framework, whose rows have gradients."""
    if isinstance(iterable, MarkedRange):
        iterable = iterable.range
    if isinstance(iterable, range):
        # `len` of a longer range is an error; a loop over it must end early, so its numbers are taken one by one.
        return Items(iterable, stacked=iterable) if iterable[: sys.maxsize] == iterable else Items(None, iter(iterable))
    if is_array(iterable) or isinstance(iterable, np.ndarray):
        return Items(iterable, stacked=iterable if is_array(iterable) else None)
    if isinstance(iterable, Product):
        return Items(iterable) if iterable.is_sized else Items(None, iter(iterable))  # type: ignore[arg-type]
    if isinstance(iterable, Combined):
        return _combined(iterable, is_array)
    if isinstance(iterable, _SIZED):
        return Items(tuple(iterable))  # type: ignore[arg-type]
    iterator = iter(iterable)
    # An iterator may have another user, who continues where a loop that ends early has stopped.
    return Items(None, iterator) if iterator is iterable or not _is_pure(iterator) else Items(tuple(iterator))


def is_iterator(iterable: Any) -> bool:
    """Whether an iterable, or a part of it, is an iterator, which may have other users."""
    if isinstance(iterable, Combined):
        return any(map(is_iterator, iterable.arguments))
    return hasattr(iterable, "__next__")


def is_taken_from(value: Any) -> bool:
    """Whether a value is an iterator, or a method of one, other than a file."""
    value = getattr(value, "__self__", value)
    return hasattr(type(value), "__next__") and not isinstance(value, io.IOBase)


def _is_pure(iterator: Any) -> bool:
    """Whether taking all items at once has the same effect as taking them one by one."""
    if type(iterator) in (zip, enumerate):
        parts = iterator.__reduce__()[1]
        return all(_is_pure(part) for part in (parts if type(iterator) is zip else parts[:1]))
    return type(iterator) in _PURE


def _combined(iterable: Combined, is_array: Callable[[Any], bool]) -> Items:
    parts: list[Any] = []
    arguments = [part.range if isinstance(part, MarkedRange) else part for part in iterable.arguments]
    if iterable.call is enumerate and 1 <= len(arguments) <= 2 and set(iterable.options) <= {"start"}:
        start = iterable.options.get("start", arguments[1] if len(arguments) == 2 else 0)
        arguments = arguments[:1]
        parts.append(start)
    elif iterable.call is not zip or iterable.options:
        return Items(None, iter(iterable))
    rows: list[Any] = []
    part: Any
    for part in arguments:
        if isinstance(part, Combined):
            inner = _combined(part, is_array)
            if inner.count is None:
                return Items(None, iter(iterable))
            part = inner.rows
        if not (isinstance(part, range | list | tuple | np.ndarray | _Rows) or is_array(part)):
            if is_iterator(part) or not (isinstance(part, _SIZED) or _is_pure(iter(part))):
                return Items(None, iter(iterable))
            part = tuple(part)
        rows.append(tuple(part) if isinstance(part, list) else part)
    if parts:
        rows = [range(parts[0], parts[0] + len(rows[0])), *rows]
    whole = _Rows(rows)
    stacked = tuple(rows) if all(isinstance(row, range) or is_array(row) for row in rows) else None
    return Items(whole, stacked=stacked)  # type: ignore[arg-type]
