"""The recorder: a real run as a trace, filled op by op in the form that the simulator fills too.

In: from the interpreter, each op when it begins and when it has ended. Out: a `Trace`, also of a run that ended early,
even in the middle of an op.
"""

from array import array
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from remat.execute.backend_protocol import Backend
from remat.memory_meter import Meter
from remat.problem import Memory
from remat.schedule import Advance, Op, Pullback, Record, Trace, Turn
from remat.schedule.events import Totals
from remat.schedule.live import LiveItem
from remat.schedule.machine import Machine
from remat.schedule.trace_columns import Columns

if TYPE_CHECKING:
    from remat.execute.interpreter import Interpreter

__all__ = ["ActiveMeters", "TraceRecorder"]


class ActiveMeters:
    """Meters of memory that are on as long as a profile is open."""

    def __init__(self) -> None:
        self.open = True
        self._on = ExitStack()

    def turn_on(self, meter: Meter | None) -> Meter | None:
        """The meter, turned on; None if there is none, or if the profile is closed."""
        if meter is None or not self.open:
            return None
        self._on.enter_context(meter.counting())
        return meter

    def close(self) -> None:
        """Turn all of them off."""
        self.open = False
        self._on.close()


class TraceRecorder:
    """Measures one run: the time of each op, and the bytes of what is live, by the sizes of the values themselves."""

    def __init__(
        self,
        backend: Backend,
        state: Any,
        *,
        memory: Memory | None = None,
        traced: bool = True,
        meters: ActiveMeters | None = None,
    ) -> None:
        self.traced, self.memory, self.meters = traced, memory, meters
        self.sizes = MeasuredSizes(backend.size(state))
        self.machine = Machine(self.sizes, memory)
        self.totals = Totals(peaks={self.machine.device: self.machine.device_size})
        self.events = Columns(self.machine.device)
        self.backward_seconds = 0.0  # seconds after the turn
        self.stopped = ""
        self.complete = False
        self.always: dict[str, int] = {}
        self.meter = None if meters is None else meters.turn_on(backend.meter())
        self._before = 0 if self.meter is None else self.meter.now()
        self._first = self.sizes.state
        self._made = array("q"), array("q")  # bytes of the working state after each op, and of the tape that it made
        self._turned = False
        self._op: Op | None = None
        self._began = 0.0

    @property
    def peak(self) -> int:
        """The most bytes that were live."""
        return self.totals.peaks[self.machine.device]

    @property
    def trace(self) -> Trace:
        """What happened so far, or in all."""
        return Trace(
            self.sizes.units,
            self.machine.device,
            self.totals,
            self.events,
            self._holders,
            self.memory,
            measured=True,
            complete=self.complete,
            always=self.always,
        )

    def begin(self, op: Op) -> None:
        """An op begins."""
        if self.meter is not None:
            self.meter.reset_peak()
        self._op = op
        self._began = perf_counter()

    def end(self, op: Op, run: "Interpreter") -> None:
        """An op has ended: add its event."""
        seconds, self._op = perf_counter() - self._began, None
        allocated = self._allocated()  # before values are weighed, which takes memory too
        self.sizes.measure(op, run)
        self._add(op, seconds, allocated)
        if isinstance(op, Turn):
            self._turned = True
        elif isinstance(op, Pullback) and op.start == 0:
            self.complete = True
            self.always = run.backend.persistent_bytes()

    def stop(self, error: BaseException, run: "Interpreter") -> None:
        """The run ends early; what was done of the op that is under way is an event of its own."""
        seconds, op, self._op = perf_counter() - self._began, self._op, None
        self.stopped = type(error).__name__
        allocated = self._allocated()
        self.sizes.units = run.units or 0
        reached, tape = run.backend.failed_at()
        if isinstance(op, Advance | Record) and op.start < reached < op.stop:
            part = type(op)(op.start, reached)
            if isinstance(part, Record):
                self.sizes.tapes[part.start, part.stop] = tape
            self._add(part, seconds, allocated)
        self.always = run.backend.persistent_bytes()

    def _allocated(self) -> int | None:
        if self.meter is None or self.meters is None or not self.meters.open:
            return None
        return max(0, self.meter.peak() - self._before - self.events.nbytes)

    def _add(self, op: Op, seconds: float, allocated: int | None) -> None:
        if allocated is not None:
            self.totals.allocated = max(self.totals.allocated or 0, allocated)
        self.machine.units = self.sizes.units
        self.machine.apply(op)
        self.totals.count(self.machine, self.totals.ops, op)
        self.totals.seconds += seconds
        if self._turned:
            self.backward_seconds += seconds
        if self.traced:
            self.events.append(op, seconds, self.machine.live(), allocated)
            self._made[0].append(self.sizes.state)
            self._made[1].append(self.sizes.tapes[op.start, op.stop] if isinstance(op, Record) else 0)

    def _holders(self, at: int) -> tuple[LiveItem, ...]:
        """Who was live while op `at` ran, found by going through the ops again; nobody knows if they were not held."""
        sizes = MeasuredSizes(self._first)
        machine = Machine(sizes, self.memory)
        for event, state, tape in zip(self.events, *self._made, strict=False):
            sizes.state = state
            if isinstance(event.op, Record):
                sizes.tapes[event.op.start, event.op.stop] = tape
            machine.units = self.sizes.units
            machine.apply(event.op)
            if event.index == at:
                return tuple(machine.holders())
        return ()


class MeasuredSizes:
    """Sizes as they were measured last: the problem that a real run turned out to be."""

    units = 0
    restartable = False

    def __init__(self, state: int) -> None:
        self.state = self._cotangent = state
        self.tapes: dict[tuple[int, int], int] = {}

    def measure(self, op: Op, run: "Interpreter") -> None:
        """Take the sizes of what the op made."""
        if isinstance(op, Record):
            self.tapes[op.start, op.stop] = run.backend.size(run.tapes[op.start, op.stop])
        elif isinstance(op, Pullback):
            self.tapes.pop((op.start, op.stop), None)
        if run.at is not None:
            self.state = run.backend.size(run.state)
        self.units = run.units or 0

    def unit_name(self, unit: int) -> str:
        return ""

    def state_size(self, state: int) -> int:
        return self.state

    def tape_size(self, start: int, stop: int) -> int:
        return self.tapes[start, stop]

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        return 2 * self.state

    def pulling_size(self, start: int, stop: int) -> int:
        return 2 * self._cotangent
