"""Turns of a loop run by a framework's `scan` or `while_loop`, from one turn that runs in place to the next.

In: a step, the values of the carried names, the items, and where to stop. Out: the values after these turns, their
number, and the outputs. A run of turns ends before a turn in which the carry changes its kind, and before one that
returns STOP: these turns run in place.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat.errors import CarryError, RematError
from remat.execute.stop import STOP, Stopped, until_stopped
from remat.frameworks import Framework
from remat.loops.request import LoopRequest
from remat.profiling.profiler import recorded_call
from remat.source.loop_info import LoopInfo
from remat.source.run_time.global_numbers import GlobalNumbers
from remat.source.run_time.items import Items, lookup
from remat.source.run_time.output_rows import OutputTable
from remat.source.run_time.ran import ENDS, Ran, Step
from remat.source.run_time.speech import Speech, calls_only_libraries
from remat.source.run_time.statics import StaticTable
from remat.source.run_time.traced_turns import TracedTurns
from remat.source.run_time.unrolled_turns import search_of
from remat.source.settings import Requests

__all__ = ["Turns"]


def _on_tuples(step: Step) -> Step:
    """A step on a single value as a step on a tuple of one."""

    def on_tuples(carry: Any, x: Any) -> Any:
        after, y = step(carry[0], x)
        return (after if after is STOP else (after,)), y

    return on_tuples


def _test_on_tuples(test: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda carry: test(carry[0])


# Errors that only a step can raise: the framework runs it in another mode, or the error explains what to do.
_OF_FRAMEWORKS = re.compile(r"Tracer|Concret|Box\b|dtype\('O'\)|an array element with a sequence|read-only")


def _passes(error: Exception, info: LoopInfo) -> bool:
    """Whether an error of a step leaves it, rather than ending the loop, so that the turn is rerun in place."""
    if isinstance(error, RematError) or type(error).__module__.startswith("remat.") or "read-only" in str(error):
        return True
    if "an exception" in info.ends:  # it must be raised inside the user's handler
        return False
    text = f"{error} {type(error).__mro__}"
    return bool(_OF_FRAMEWORKS.search(text)) or (isinstance(error, RuntimeError) and "grad" in text)


@dataclass
class Turns:
    """The turns of one loop that a framework runs."""

    info: LoopInfo
    framework: Framework
    step: Step
    test: Callable[[Any], Any] | None
    items: Items | None  # None: a while loop
    request: Requests  # by the number of turns, None if unknown
    traced: set[int]  # numbers of carried names whose floats a step replaces by differentiated values
    what: str = field(default="checkpointed", repr=False)
    raised: Exception | None = field(default=None, repr=False)  # what the turn after the last run of turns raised

    def __post_init__(self) -> None:
        self.speech = Speech(self._attempt, lambda k: [] if self.items is None else self.items.said(k))
        self.is_running = False
        # Or if a turn has written something, in a function that it calls.
        self.emits = self.info.emits or (self.items is not None and self.items.has_said)
        numbers = self.items is None or self.items.stacked is not None or self.items.are_numbers
        self.is_silent = numbers and calls_only_libraries(self.step)
        self.function = self.step
        self.single = self.step if len(self.info.carry) == 1 else None  # on the one carried value itself
        if self.single is not None:
            self.step, self.test = _on_tuples(self.step), self.test and _test_on_tuples(self.test)

    def run(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        """Run the turns from `start` up to `stop`, or to one that ends the loop or changes the carry's kind."""
        self.raised, self.is_running = None, True
        try:
            ran = self._run(values, start, stop)
        finally:
            self.is_running = False
        if not ran.why:
            self.raised = None
        self.speech.forget(start + ran.turns)
        self.speech.speak()
        return ran

    def _attempt(self, step: Step, carry: Any, x: Any) -> Any:
        """The result of a step; STOP if it raises, so that the turn is rerun in place and raises there, as in Python.

        So the turns before it count, with what they print and append. In the backward only segments of JAX run again
        up to a turn that raised; elsewhere an error there is a new one.
        """
        try:
            return step(carry, x)
        except Exception as error:
            again = self.framework.TRAITS.has_scan_options or "an exception" in self.info.ends
            if not (self.is_running or again) or _passes(error, self.info):
                raise
            self.raised = error
            return STOP, None

    def _run(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        if stop is not None and stop <= start:
            return Ran(None, 0, (), "")
        if self.framework.TRAITS.has_scan_options:
            traced = TracedTurns(
                self.info, self.framework, self.step, self.test, self.items, self.request, self._scan, self.speech
            )
            return traced.run(values, start, stop)
        stops = self.items is None or bool(self.info.ends) or self.items.count is None
        known = not stops
        why = ""
        while True:
            most = None if stop is None else stop - start
            try:
                if stops and not (self.info.lists or self.info.arrays):
                    return self._until(values, start, most, why)
                if not known:
                    most = self._count(values, start, most)
                    known, why = True, why or ENDS
                    if most == 0:
                        return Ran(None, 0, (), why)
                assert most is not None
                return self._scan(values, start, start + most, why)
            except Stopped as stopped:
                if self.speech.is_heard and not self.emits:
                    self.emits = True  # run all turns again, by number
                    continue
                if stopped.step == 0:
                    return Ran(None, 0, (), ENDS)
                known, stop, why = True, start + stopped.step, ENDS
            except CarryError as error:
                self.speech.forget(start + error.step)  # that turn is run again, and writes then
                if error.step == 0 and self.table.became_traced:
                    self.traced |= self.table.became_traced
                    continue
                if error.step == 0:
                    return Ran(None, 0, (), str(error))
                # Rerun all turns before that one, with a plan for their number.
                known, stop, why = True, start + error.step, str(error)

    def _scan(self, values: Sequence[Any], start: int, stop: int, why: str) -> Ran:
        table = self._table(values)
        plain = self.single is not None and not (table.any or self.emits or self.info.ends)
        xs, step = self._inputs(start, stop, self.single if plain and self.single is not None else self.step)
        numbers = self._numbers()
        step = numbers.bound(step)
        if not self.emits:
            step = self.speech.attempting(step) if self.is_silent else self.speech.listening(step)
        step, init = (table.wrap(step), table.encode(values)) if table.any else (step, tuple(values))
        outputs = OutputTable(self.framework, len(self.info.lists)) if self.info.lists or self.info.arrays else None
        if outputs is not None:
            step = outputs.wrap(step)
        request: LoopRequest = self.request(stop - start)
        with recorded_call(self.what, self.step) as call:
            request = request.for_call(self.step, call, self.framework.TRAITS.name)
            first = init[0] if plain else init or (0,)
            after, ys = self.framework.scan(step, first, xs, None, request)
        numbers.settle()
        after = (after,) if plain else after if init else ()
        rows = outputs.rows(ys) if outputs is not None else []
        after = table.decode(after) if table.any else after
        return Ran(after, stop - start, rows, why)

    def _table(self, values: Sequence[Any]) -> StaticTable:
        boxes = self.framework.TRAITS.boxes_floats
        floats = [k for k in range(len(values)) if k not in self.traced] if boxes else ()
        self.table = StaticTable(values, self.framework, floats)
        return self.table

    def _numbers(self) -> GlobalNumbers:
        return GlobalNumbers(self.function, lambda: search_of(self.framework, self.function).assigned)

    def _inputs(self, start: int, stop: int, step: Step) -> tuple[Any, Step]:
        """The inputs of the turns, and the step that takes them."""
        items = self.items
        if not self.info.carry:
            plain = step

            def step(carry: Any, x: Any) -> Any:
                return carry, plain((), x)[1]

        numbers = self.framework.integers(range(start, stop))
        if self.emits:
            item = (lambda k: None) if items is None else lookup(items.before(stop))
            return numbers, lambda carry, k: self.speech.turn(step, int(k), carry, item(int(k)))
        if items is None:
            return numbers, lambda carry, k: step(carry, None)
        if items.stacked is None:
            item = lookup(items.before(stop))
            return numbers, lambda carry, k: step(carry, item(int(k)))
        if isinstance(items.stacked, tuple):
            parts = tuple(self._rows(part, start, stop) for part in items.stacked)
            if self._needs_int and any(isinstance(part, range) for part in items.stacked):
                ints = [isinstance(part, range) for part in items.stacked]
                return parts, lambda carry, x: step(
                    carry, tuple(int(k) if is_int else k for k, is_int in zip(x, ints, strict=True))
                )
            return parts, step
        rows = self._rows(items.stacked, start, stop)
        if self._needs_int and isinstance(items.stacked, range):
            return rows, lambda carry, k: step(carry, int(k))
        return rows, step

    @property
    def _needs_int(self) -> bool:
        """Whether numbers of a range come as concrete arrays of the framework, to be converted to integers."""
        return self.framework.TRAITS.name == "torch"

    def _rows(self, part: Any, start: int, stop: int) -> Any:
        return self.framework.integers(part[start:stop]) if isinstance(part, range) else part[start:stop]

    def _body(self, step: Step, start: int, lazy_last: bool) -> Callable[[Any], Any]:
        """One turn for `while_loop`; the carry is the values, followed by the number of the turn."""
        items = self.items
        item = lookup(items.rows) if items is not None and items.rows is not None else None

        def body(carry: Any) -> Any:
            k = int(carry[-1])
            x = None
            if items is not None:
                if not items.has(k) or (lazy_last and not items.has(k + 1)):
                    return STOP
                x = items.at(k) if item is None else item(k)
            after = self.speech.turn(step, k, carry[:-1], x)[0]
            return STOP if after is STOP else (*after, k + 1)

        return body

    def _until(
        self, values: Sequence[Any], start: int, most: int | None, why: str, *, counts_only: bool = False
    ) -> Ran:
        table = self._table(values)
        numbers = self._numbers()
        step = numbers.bound(self.step)
        step, init = (table.wrap(step), table.encode(values)) if table.any else (step, tuple(values))
        lazy_last = self.items is not None and self.items.count is None and self.info.last_in_place
        body = self._body(step, start, lazy_last)
        request: LoopRequest = self.request(None)
        if counts_only:
            request = replace(request, counts_only=True)
        with recorded_call(self.what, self.step) as call:
            request = request.for_call(self.step, call, self.framework.TRAITS.name)
            *after, k = self.framework.while_loop(until_stopped, body, (*init, start), most, request)
        numbers.settle()
        count = int(k) - start
        if not why and (most is None or count < most):
            why = ENDS
        return Ran(table.decode(after) if table.any else after, count, (), why)

    def _count(self, values: Sequence[Any], start: int, most: int | None) -> int:
        """The number of turns before the one that ends the loop; a scan with outputs must know it."""
        try:
            self._until(values, start, most, "", counts_only=True)
        except Stopped as stopped:
            return stopped.step
        raise AssertionError("a loop that only counts has no result")
