"""Traces of real runs: filled by the interpreter in the form that the simulator fills too.

`with collect_runs() as runs:` gathers what every run that ends inside was `about` (its plan), and its `Trace`. Without
it nothing is measured.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from remat.execute.verbs import Verbs
from remat.schedule import Event, Op, Pullback, Record, Trace
from remat.schedule.machine import Machine
from remat.schedule.trace import Holder, Totals

if TYPE_CHECKING:
    from remat.execute.run import Run

__all__ = ["Ran", "Recorder", "collect_runs", "new_recorder"]


@dataclass(frozen=True, eq=False)
class Ran:
    """A run that has ended: what it was about, which is its plan, and what happened."""

    about: Any
    trace: Trace


_collected: ContextVar[list[Ran] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_runs() -> Iterator[list[Ran]]:
    """A list that grows by every run that ends in the block."""
    runs: list[Ran] = []
    token = _collected.set(runs)
    try:
        yield runs
    finally:
        _collected.reset(token)


def new_recorder(verbs: Verbs, state: Any) -> "Recorder | None":
    """A recorder for a run, if runs are collected."""
    runs = _collected.get()
    return None if runs is None else Recorder(verbs, state, runs)


class Recorder:
    """Measures one run: the time of each op, and the bytes of what is live, by the sizes of the values themselves."""

    def __init__(self, verbs: Verbs, state: Any, runs: list[Ran]) -> None:
        self.sizes = _Measured(verbs.size(state))
        self.machine = Machine(self.sizes)
        self.totals = Totals(peaks={self.machine.device: self.machine.device_size})
        self.events: list[Event] = []
        self.runs = runs
        self.at_peak: tuple[Holder, ...] = ()
        self._began = 0.0

    def begin(self) -> None:
        """An op begins."""
        self._began = perf_counter()

    def end(self, op: Op, run: "Run") -> None:
        """An op has ended: add its event."""
        seconds = perf_counter() - self._began
        self.sizes.measure(op, run)
        self.machine.units = self.sizes.units
        self.machine.apply(op)
        index, peak = len(self.events), self.totals.peak_index
        self.totals.count(self.machine, index, op)
        self.totals.seconds += seconds
        if self.totals.peak_index != peak:
            self.at_peak = tuple(self.machine.holders())
        start = self.events[-1].start + self.events[-1].seconds if self.events else 0.0
        self.events.append(Event(index, op, start, seconds, self.machine.live()))
        if isinstance(op, Pullback) and op.start == 0:
            units, at_peak = run.units or 0, self.at_peak
            trace = Trace(units, self.machine.device, self.totals, self.events, lambda _: at_peak)
            self.runs.append(Ran(run.about, trace))


class _Measured:
    """Sizes as they were measured last: the problem that a real run turned out to be."""

    units = 0
    restartable = False

    def __init__(self, state: int) -> None:
        self._state = self._cotangent = state
        self._tapes: dict[tuple[int, int], int] = {}

    def measure(self, op: Op, run: "Run") -> None:
        """Take the sizes of what the op made."""
        if isinstance(op, Record):
            self._tapes[op.start, op.stop] = run.verbs.size(run.tapes[op.start, op.stop])
        elif isinstance(op, Pullback):
            self._tapes.pop((op.start, op.stop), None)
        if run.at is not None:
            self._state = run.verbs.size(run.state)
        self.units = run.units or 0

    def state_size(self, state: int) -> int:
        return self._state

    def tape_size(self, start: int, stop: int) -> int:
        return self._tapes[start, stop]

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        return 2 * self._state

    def pulling_size(self, start: int, stop: int) -> int:
        return 2 * self._cotangent
