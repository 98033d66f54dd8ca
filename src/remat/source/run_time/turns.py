"""The run time of a rewritten function: what its generated code calls.

`turns` and `while_turns` run most turns of a loop through the framework of its values. The loop itself runs those that
must run in place: the first, if a carried name has no value yet; the last, if names that are not carried are read after
the loop; the one that ends the loop; and one in which a carried value changes its kind. If no gradient is needed, all
turns run in place: that is plain Python, and keeps nothing.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CellType, FrameType
from typing import Any, NoReturn

import numpy as np

from remat.errors import DeterminismError, InfeasibleError, RematError, SourceError, StepError
from remat.execute.python_state import PythonState
from remat.execute.stop import STOP
from remat.frameworks import Framework, find_framework
from remat.source.loop_info import LoopInfo
from remat.source.marked_range import MarkedRange
from remat.source.run_time.filled_arrays import fillable, with_rows
from remat.source.run_time.given_arrays import NOTHING_GIVEN, GivenArrays, is_changed, write_back
from remat.source.run_time.item_assignment import augmented, put, put_augmented, same
from remat.source.run_time.items import Combined, Items, Product, is_iterator, is_taken_from, items_of
from remat.source.run_time.iterated_objects import Iterated, own_object
from remat.source.run_time.last_item import last_item, read_last
from remat.source.run_time.messages import with_names
from remat.source.run_time.ran import ENDS, OutputRows, Ran
from remat.source.run_time.segments_of_turns import Turns
from remat.source.run_time.shared_arrays import check_separate
from remat.source.run_time.speech import say, say_unread
from remat.source.run_time.statics import UNBOUND
from remat.source.run_time.swallowed_errors import note_error, settle
from remat.source.run_time.unrolled_turns import search_of
from remat.source.settings import Requests, Settings

__all__ = ["RunTime"]

Maker = Callable[[], tuple[Callable[[Any, Any], Any], Callable[[Any], Any] | None]]


class RunTime:
    """The run time of one rewritten function; its slots hide it from the search for captured values."""

    __slots__ = ("infos", "least", "log", "settings", "traced")

    UNBOUND = UNBOUND
    ended = (STOP, None)
    once = (None,)
    product = Product
    given = GivenArrays.of_call
    slice = slice
    put = staticmethod(put)
    put_augmented = staticmethod(put_augmented)
    augmented = staticmethod(augmented)
    same = staticmethod(same)
    last_item = staticmethod(last_item)
    read_last = staticmethod(read_last)
    say = staticmethod(say)
    say_unread = staticmethod(say_unread)
    settle = staticmethod(settle)

    def __init__(self, infos: Sequence[LoopInfo], settings: Settings, log: dict[int, Any]) -> None:
        self.infos = {info.number: info for info in infos}
        self.settings, self.log = settings, log
        # By the number of an inner loop and its share of the budget: the bytes that it needs, if these are more.
        self.least: dict[tuple[int, Any], int] = {}
        # By the number of a loop: the carried names whose floats its first turn replaces (`statics.py`).
        self.traced: dict[int, set[int]] = {info.number: set() for info in infos}

    @staticmethod
    def bound(read: Callable[[], Any]) -> Any:
        """The value of a variable, or UNBOUND."""
        try:
            return read()
        except NameError:
            return UNBOUND

    @staticmethod
    def copy(value: Any) -> Any:
        """`value.copy()`; for a box of autograd, which has no such method, a box of a copy, at the same node."""
        if type(value).__name__.endswith("Box") and not hasattr(value, "copy"):
            return type(value)(value._value.copy(), value._trace, value._node)
        return value.copy()

    @staticmethod
    def combined(call: Any, *arguments: Any, **options: Any) -> Any:
        """`zip` or `enumerate` as an object that knows its parts."""
        return Combined(call, arguments, options) if call in (zip, enumerate) else call(*arguments, **options)

    def turns(
        self,
        number: int,
        iterable: Any,
        make: Maker,
        get: Callable[[], Any],
        put: Any,
        lists: Any,
        arrays: Any,
        given: GivenArrays = NOTHING_GIVEN,
    ) -> Iterator[Any]:
        """The items of the turns of a `for` loop that run in place."""
        run = _LoopRun(self, self.infos[number], make, get, put, lists, arrays, given, iterable)
        if not run.runs_turns:
            # `yield from` would close a generator that the program may continue after a `break`.
            for item in iterable:  # noqa: UP028
                yield item
            return
        items = run.items
        assert items is not None
        k = 0
        iterated = Iterated(iterable)
        del iterable
        try:
            while run.has(k):
                k += run.some_turns(k, sys._getframe(1))
                run.check_iterated(iterated)
                if not run.has(k):
                    break
                run.turns.speech.speak(items.said(k))
                yield items.at(k)
                run.check_iterated(iterated)
                k += 1
            run.turns.speech.speak(items.said(k))
            items.end()
        finally:
            items.release()  # a generator that nobody else has ends here, as in Python

    def while_turns(
        self,
        number: int,
        make: Maker,
        get: Callable[[], Any],
        put: Any,
        lists: Any,
        arrays: Any,
        given: GivenArrays = NOTHING_GIVEN,
    ) -> Callable[[], bool]:
        """A function that a `while` loop calls before its own test: it runs turns, and returns whether to go on."""
        run: list[_LoopRun] = []
        done = [0]

        def go() -> bool:
            if not run:
                run.append(_LoopRun(self, self.infos[number], make, get, put, lists, arrays, given, None))
            if run[0].runs_turns:
                done[0] += run[0].some_turns(done[0], sys._getframe(1)) + 1
                return not run[0].over
            return True

        return go


class _LoopRun:
    """One run of one loop."""

    __slots__ = (
        "ahead",
        "arrays",
        "framework",
        "get",
        "given",
        "in_place",
        "info",
        "items",
        "lists",
        "over",
        "put",
        "requests",
        "runs_turns",
        "share",
        "step",
        "time",
        "turns",
        "why",
    )

    def __init__(
        self,
        time: RunTime,
        info: LoopInfo,
        make: Maker,
        get: Any,
        put: Any,
        lists: Any,
        arrays: Any,
        given: GivenArrays,
        iterable: Any,
    ) -> None:
        self.time, self.info, self.get, self.put, self.lists, self.arrays = time, info, get, put, lists, arrays
        self.given = given
        self.in_place = 0  # turns that ran in place, other than as the first or the last
        self.why = ""  # the last reason; that a turn ends the loop only if there was no other
        self.over = False
        self.items: Items | None = None
        self.ahead: tuple[PythonState, Any] | None = None  # if items were taken ahead: what turns must not change
        settings = time.settings.of_loop(iterable if isinstance(iterable, MarkedRange) else None, info)
        values, (step, test) = get(), make()
        self.framework: Framework = find_framework(values, _parts(iterable), using=(step,))
        self._check_own_object(values, iterable)
        has_state = bool(info.carry or info.lists or info.arrays)
        self.runs_turns = settings is not None and has_state and self.framework.is_differentiating()
        if not self.runs_turns:
            return
        self._check_captured(step)
        if info.kind == "for":
            self.items = self._items(iterable, step)
        assert settings is not None
        names = info.carry if info.kind == "for" and not info.ends else (*info.carry, "turn")

        self.step = step
        self.requests = Requests(settings, names, partial(time.log.__setitem__, info.number), info.where)
        self.share = info.number, settings.memory
        if self.share in time.least:
            self.requests.enlarge(time.least[self.share])
        self.turns = Turns(info, self.framework, step, test, self.items, self.requests, time.traced[info.number])

    def _items(self, iterable: Any, step: Any) -> Items:
        if self.info.shares_iterator and is_iterator(iterable):
            self._refuse("its body may take items from the iterator of the loop itself", "Make a list of it first.")
        items = items_of(iterable, self._is_array)
        items.states = self.framework.random_states()
        if items.is_pure:
            return items if self.info.ends else items.take_all()
        state = PythonState(search_of(self.framework, step).containers)
        items.states = [*items.states, state]
        if self.info.ends:
            return items
        try:
            taken = items.take_all()
        except StepError as error:
            raise self._error(error) from error
        self.ahead = state, state.version()
        return taken

    def has(self, k: int) -> bool:
        """Whether the loop has an item k."""
        assert self.items is not None
        try:
            return self.items.has(k)
        except StepError as error:
            raise self._error(error) from error

    def _check_captured(self, step: Any) -> None:
        """Refuse an iterator that a function takes items from, since recomputed turns cannot take them again."""
        for cell, name in zip(step.__closure__ or (), step.__code__.co_freevars, strict=True):
            if name in self.info.captured and cell != CellType() and is_taken_from(cell.cell_contents):
                self._refuse(
                    f"{name} is an iterator, from which a recomputed iteration cannot take its items again",
                    "Make a list of it before the loop, and index it.",
                )

    def _check_own_object(self, values: Sequence[Any], iterable: Any) -> None:
        name = own_object(self.info, values, iterable, self.framework)
        if name is not None:
            self._refuse(
                f"it changes {name}, which it iterates over",
                f"Iterate over a copy, as in for … in list({name}), or over a range.",
            )

    def check_iterated(self, iterated: Iterated) -> None:
        """Refuse a loop that has changed what it iterates over, or what an iterator ahead of it may have read."""
        if self.ahead is not None and self.ahead[0].version() != self.ahead[1]:
            self._refuse(
                "its iterator is ahead of the iterations, which change an object that it may read",
                "Make a list of it before the loop, if it does not read it; or write a while loop.",
            )
        if iterated.has_changed():
            self._refuse(
                "what it iterates over was changed while it ran",
                "Iterate over a copy, as in for … in list(items), or write a while loop.",
            )

    def _is_array(self, value: Any) -> bool:
        own = isinstance(value, self.framework.TRAITS.array_types)
        return own or (isinstance(value, np.ndarray) and self.framework.TRAITS.name != "torch")

    def some_turns(self, start: int, frame: FrameType) -> int:
        """Run turns from `start` up to one that must run in place, and set the variables; return their number.

        `frame` is that of the function, or of the step of an outer loop, in which the loop runs.
        """
        try:
            return self._some_turns(start, frame)
        except RematError as error:
            note_error(error, self.info, frame)
            raise

    def _some_turns(self, start: int, frame: FrameType) -> int:
        if self.turns.raised is not None and "an exception" not in self.info.ends:
            raise self.turns.raised  # by the step of the last turn, and not by that turn in place
        values = self.get()
        if start == 0 and any(value is UNBOUND for value in values):
            return 0
        stop = None if self.items is None or self.items.count is None else self.items.count - self.info.last_in_place
        if self.arrays is not None and stop is not None:
            assert self.items is not None
            stop = fillable(self.arrays[0](), self.items, start, stop)
        objects = dict(zip((*self.info.carry, *self.info.lists), (*values, *self.lists), strict=True))
        if self.arrays is not None:
            objects |= zip(self.info.arrays, self.arrays[0](), strict=True)
        check_separate(self.info, frame, objects, self.framework)
        del objects, frame
        values, theirs = self.given.copied(self.info, values)
        try:
            ran = self._run(values, start, stop)
        except StepError as error:
            raise self._error(error) from error
        except DeterminismError as error:
            self.requests(None).locate(error)
            raise
        except TypeError as error:
            if "Box" in str(error):  # a box of autograd, passed to a plain NumPy function
                error.add_note(
                    "a function that the loop calls uses plain numpy, and is not rewritten: decorate it with "
                    "@remat.checkpointed, too, or import autograd.numpy there"
                )
            raise
        self._note(ran)
        self.over = ran.over
        if ran.values is not None:
            if self.put is not None:
                after = list(ran.values)
                for k, array in theirs.items():
                    after[k] = write_back(self.info, self.info.carry[k], array, after[k])
                self.put(tuple(after))
            self._give_out(ran, start)
        return ran.turns

    def _run(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        try:
            return self.turns.run(values, start, stop)
        except InfeasibleError as error:
            if not self.info.depth or error.unit != "bytes":
                raise
            # It gets more than its share of the budget; the loop around it decides whether that fits into its tape.
            self.time.least[self.share] = error.minimum
        self.requests.enlarge(self.time.least[self.share])
        return self.turns.run(values, start, stop)

    def _note(self, ran: Ran) -> None:
        """Count turns in place: a few are normal, but if all ran in place, everything would be kept."""
        self.in_place += bool(ran.why)
        if ran.why != ENDS or not self.why:
            self.why = ran.why or self.why
        if self.in_place > len(self.info.carry) + 2:
            self._refuse(
                self.why,
                "What a loop carries keeps its shape and type from one iteration to the next: make arrays of their "
                "final size before it, or append to a list.",
            )

    def _refuse(self, why: str, how: str) -> NoReturn:
        info = self.info
        raise SourceError(
            f"{info.where}: the loop cannot be checkpointed, since {with_names(why, info)}\n    {info.code}\n{how}",
            info.file, info.line, info.column, info.code,
        )  # fmt: skip

    def _error(self, error: StepError) -> SourceError:
        info = self.info
        message = f"{info.where}: {with_names(str(error), info)}\n    {info.code}"
        return SourceError(message, info.file, info.line, info.column, info.code)

    def _give_out(self, ran: Ran, start: int) -> None:
        """Append each turn's outputs to the lists, and write rows into the arrays."""
        lists, arrays = ran.rows[: len(self.lists)], ran.rows[len(self.lists) :]
        for k in range(ran.turns if lists else 0):  # turn by turn, since a list may be appended to twice a turn
            for sink, rows in zip(self.lists, lists, strict=True):
                sink.append(rows.item(k))
        if self.arrays is not None and arrays:
            get, fill, keys_of = self.arrays
            assert self.items is not None
            keys = zip(*[keys_of(self.items.at(k)) for k in range(start, start + ran.turns)], strict=True)
            filled = []
            for name, array, rows, places in zip(self.info.arrays, get(), arrays, keys, strict=True):
                self._check_held(name, array, rows)
                after = with_rows(array, places, rows)
                filled.append(write_back(self.info, name, array, after) if self.given.holds(array) else after)
            fill(tuple(filled))

    def _check_held(self, name: str, array: Any, rows: OutputRows) -> None:
        for own, other, rebinds in self.info.held:
            if own == name and isinstance(array, dict | list) and not (rebinds and not is_changed(rows.item(0))):
                self._refuse(
                    f"{name} holds what is put into it, which is changed in place after that, and {other} is read then",
                    f"Put a copy into it, as in {name}[i] = v.copy(), or write v = v + … for v += ….",
                )


def _parts(iterable: Any) -> Any:
    """The values of an iterable from which the framework may be found."""
    if isinstance(iterable, Combined):
        return [_parts(part) for part in iterable.arguments]
    if isinstance(iterable, list | tuple):
        return list(iterable)
    return None if isinstance(iterable, range | MarkedRange | Product) or hasattr(iterable, "__next__") else iterable
