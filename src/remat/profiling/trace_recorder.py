"""The trace recorder: measures a real run op by op, and gives the same kind of `Trace` as the simulator.

It observes the interpreter, which calls it before and after each op. A run that ended early, even in the middle of an
op, has a trace too.
"""

from array import array
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from remat.execute.backend_protocol import ObservableBackend
from remat.execute.interpreter import Interpreter, LiveSizes
from remat.memory_meter import Meter
from remat.problem import Memory
from remat.profiling.tape_contents import TapeContents, TapeListing
from remat.schedule import Advance, Op, Pullback, Record, Trace, Turn
from remat.schedule.events import Totals
from remat.schedule.live import LiveItem
from remat.schedule.machine import Machine
from remat.schedule.trace_columns import Columns

__all__ = ["MADE_BY_RUN", "ActiveMeters", "TraceRecorder"]

MADE_BY_RUN = ("outputs", "cotangents of outputs", "gradients")  # persistent bytes that the run itself allocates


class ActiveMeters:
    """Memory meters that count while a profile is open."""

    def __init__(self) -> None:
        self.open = True
        self._on = ExitStack()

    def turn_on(self, meter: Meter | None) -> Meter | None:
        """Start the meter and return it; None if there is none or the profile is closed."""
        if meter is None or not self.open:
            return None
        self._on.enter_context(meter.counting())
        return meter

    def close(self) -> None:
        """Stop all meters."""
        self.open = False
        self._on.close()


class TraceRecorder:
    """Measures one run: the seconds of each op, and the live bytes from the actual sizes of values."""

    def __init__(
        self,
        backend: ObservableBackend,
        state: Any,
        *,
        memory: Memory | None = None,
        restartable: bool = False,
        traced: bool = True,
        meters: ActiveMeters | None = None,
        listing: TapeListing | None = None,
    ) -> None:
        self._listing = listing if traced else None  # None once a tape has been listed
        self.tape: TapeContents | None = None  # what is inside the tape of one step
        self.traced, self.memory, self.meters = traced, memory, meters
        self.device = "ram" if memory is None else memory.device.name
        self.sizes = MeasuredSizes(backend.size(state), restartable=restartable)
        self.totals = Totals(peaks={self.device: self.sizes.state})
        self.events = Columns(self.device)
        self.backward_seconds = 0.0  # seconds of the ops after the turn
        self.stopped = ""
        self.complete = False
        self.always: dict[str, int] = {}  # persistent bytes by name, live during the whole run
        self.meter = None if meters is None else meters.turn_on(backend.meter())
        self._allocated_before = 0 if self.meter is None else self.meter.now()
        self._initial_state = self.sizes.state  # bytes
        # For each event, the bytes of the working state and of the recorded tape. `_holders` replays a machine from
        # these, since a list of live values for each event would be too large.
        self._event_sizes = array("q"), array("q")
        self._turned = False
        self._op: Op | None = None  # the running op
        self._began = self._seconds = 0.0  # when the current op began, how long it took
        self._allocated: int | None = None  # the most bytes allocated while it ran

    @property
    def peak(self) -> int:
        """The most bytes live on the device."""
        return self.totals.peaks[self.device]

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        return Trace(
            self.sizes.units,
            self.device,
            self.totals,
            self.events,
            self._holders,
            self.memory,
            measured=True,
            complete=self.complete,
            always=self.always,
        )

    def begin(self, op: Op) -> None:
        """Start the clock and a new peak of the meter."""
        if self.meter is not None:
            self.meter.reset_peak()
        if self._listing is not None and isinstance(op, Record):
            self._listing.begin()
        self._op = op
        self._began = perf_counter()

    def measure(self, op: Op, run: Interpreter[ObservableBackend]) -> None:
        """Stop the clock, then measure the sizes of the op's results."""
        self._seconds, self._op = perf_counter() - self._began, None
        self._allocated = self._allocated_bytes(run)  # first, since measuring sizes may allocate
        self.sizes.measure(op, run)
        if isinstance(op, Record):
            self._list_tape(run.tapes[op.start, op.stop])

    def _list_tape(self, tape: Any) -> None:
        """List what is inside a tape, if it is the first."""
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.end()
            self.tape = listing.contents(tape)

    def end(self, op: Op, run: Interpreter[ObservableBackend]) -> None:
        """Add the event of an op that the machine has applied."""
        self._add(op, run)
        if isinstance(op, Turn):
            self._turned = True
        elif isinstance(op, Pullback) and op.start == 0:
            self.complete = True
            self.always = run.backend.persistent_bytes(run.gradients)

    def stop(self, error: BaseException, run: Interpreter[ObservableBackend]) -> None:
        """Record how far a run got that ends early: the finished steps of its last op become an event."""
        self._seconds, op, self._op = perf_counter() - self._began, self._op, None
        self.stopped = type(error).__name__
        if self._listing is not None:
            self._listing.end()
        self._allocated = self._allocated_bytes(run)
        self.sizes.units = run.units or 0
        reached, tape = run.backend.failed_at()
        if isinstance(op, Advance | Record) and op.start < reached < op.stop:
            finished = type(op)(op.start, reached)
            if isinstance(finished, Record):
                self.sizes.tapes[finished.start, finished.stop] = tape
            run.machine.apply(finished)
            self._add(finished, run)
        self.always = run.backend.persistent_bytes(run.gradients)

    def _allocated_bytes(self, run: Interpreter[ObservableBackend]) -> int | None:
        """The most bytes allocated during the op; None without a meter.

        This excludes the recorder's own bytes, and outputs, their cotangents, and gradients of parameters and inputs.
        No plan can make these smaller, so budgets do not cover them and they are reported separately, like inputs and
        parameters.
        """
        if self.meter is None or self.meters is None or not self.meters.open:
            return None
        peak = self.meter.peak()
        apart = run.backend.persistent_bytes(run.gradients)
        apart_bytes = sum(apart.get(name, 0) for name in MADE_BY_RUN)
        return max(0, peak - self._allocated_before - self.events.nbytes - apart_bytes)

    def _add(self, op: Op, run: Interpreter[ObservableBackend]) -> None:
        if self._allocated is not None:
            self.totals.allocated = max(self.totals.allocated or 0, self._allocated)
        self.totals.count(run.machine, self.totals.ops, op)
        if self._allocated is not None:
            # Rows of outputs may also be kept states, which count in the peak although outputs were subtracted above.
            self.totals.allocated = max(self.totals.allocated or 0, self.totals.peaks[self.device])
        self.totals.seconds += self._seconds
        if self._turned:
            self.backward_seconds += self._seconds
        if self.traced:
            self.events.append(op, self._seconds, run.machine.live(), self._allocated)
            self._event_sizes[0].append(self.sizes.state)
            self._event_sizes[1].append(self.sizes.tapes[op.start, op.stop] if isinstance(op, Record) else 0)

    def _holders(self, at: int) -> tuple[LiveItem, ...]:
        """What was live while op `at` ran, by applying the ops to a new machine; () if events were not stored."""
        sizes = MeasuredSizes(self._initial_state, restartable=self.sizes.restartable)
        machine = Machine(sizes, self.memory)
        for event, state, tape in zip(self.events, *self._event_sizes, strict=False):
            sizes.state = state
            if isinstance(event.op, Record):
                sizes.tapes[event.op.start, event.op.stop] = tape
            machine.units = self.sizes.units
            machine.apply(event.op)
            if event.index == at:
                return tuple(machine.holders())
        return ()


class MeasuredSizes(LiveSizes):
    """The most recently measured sizes."""

    def measure(self, op: Op, run: Interpreter[ObservableBackend]) -> None:
        """Measure the working state, and the tape if the op recorded one."""
        if run.has_state:
            self.state = run.backend.size(run.state)
        if isinstance(op, Record):
            tape = run.backend.size(run.tapes[op.start, op.stop])
            self.tapes[op.start, op.stop] = tape + (self.state if self.restartable else 0)
        elif isinstance(op, Pullback):
            self.tapes.pop((op.start, op.stop), None)
        self.units = run.units or 0
