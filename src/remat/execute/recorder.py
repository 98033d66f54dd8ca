"""The recorder: a real run as a trace, filled op by op in the form that the simulator fills too.

In: from the interpreter, each op when it begins and when it has ended. Out: a `Trace`, also of a run that ended early.
"""

from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from remat.execute.verbs import Verbs
from remat.schedule import Op, Pullback, Record, Trace, Turn
from remat.schedule.columns import Columns
from remat.schedule.events import Holder, Totals
from remat.schedule.machine import Machine

if TYPE_CHECKING:
    from remat.execute.run import Run

__all__ = ["Recorder"]


class Recorder:
    """Measures one run: the time of each op, and the bytes of what is live, by the sizes of the values themselves."""

    def __init__(self, verbs: Verbs, state: Any, *, traced: bool = True, meters: ExitStack | None = None) -> None:
        self.traced = traced
        self.sizes = _Measured(verbs.size(state))
        self.machine = Machine(self.sizes)
        self.totals = Totals(peaks={self.machine.device: self.machine.device_size})
        self.events = Columns(self.machine.device)
        self.at_peak: tuple[Holder, ...] = ()
        self.later = 0.0  # seconds after the turn
        self.stopped = ""
        self.complete = False
        self.always: dict[str, int] = {}
        self.meter = None if meters is None else verbs.meter()
        if self.meter is not None and meters is not None:
            meters.enter_context(self.meter.on())
            self._before = self.meter.now()
        self._turned = False
        self._began = 0.0

    @property
    def peak(self) -> int:
        """The most bytes that were live."""
        return self.totals.peaks[self.machine.device]

    @property
    def trace(self) -> Trace:
        """What happened so far, or in all."""
        at_peak = self.at_peak
        return Trace(
            self.sizes.units,
            self.machine.device,
            self.totals,
            self.events,
            lambda _: at_peak,
            measured=True,
            complete=self.complete,
            always=self.always,
        )

    def begin(self) -> None:
        """An op begins."""
        if self.meter is not None:
            self.meter.forget()
        self._began = perf_counter()

    def end(self, op: Op, run: "Run") -> None:
        """An op has ended: add its event."""
        seconds = perf_counter() - self._began
        allocated = None if self.meter is None else max(0, self.meter.peak() - self._before - self.events.nbytes)
        self.sizes.measure(op, run)
        self.machine.units = self.sizes.units
        self.machine.apply(op)
        peak = self.totals.peak_index
        self.totals.count(self.machine, self.totals.ops, op)
        self.totals.seconds += seconds
        if self._turned:
            self.later += seconds
        if allocated is not None:
            self.totals.allocated = max(self.totals.allocated or 0, allocated)
        if self.totals.peak_index != peak:
            self.at_peak = tuple(self.machine.holders())
        if self.traced:
            self.events.append(op, seconds, self.machine.live(), allocated)
        if isinstance(op, Turn):
            self._turned = True
        elif isinstance(op, Pullback) and op.start == 0:
            self.complete = True
            self.always = run.verbs.always()

    def stop(self, error: BaseException, run: "Run") -> None:
        """The run ends early."""
        self.stopped = type(error).__name__
        self.always = run.verbs.always()


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

    def unit_name(self, unit: int) -> str:
        return ""

    def state_size(self, state: int) -> int:
        return self._state

    def tape_size(self, start: int, stop: int) -> int:
        return self._tapes[start, stop]

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        return 2 * self._state

    def pulling_size(self, start: int, stop: int) -> int:
        return 2 * self._cotangent
