"""Events: what each op of a run did, and the totals of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from remat.ops import Advance, Fetch, Keep, Op, Pullback, Record, Run
from remat.schedule.live import Live
from remat.schedule.machine import Machine

__all__ = ["Event", "TapeSizes", "Totals"]


@dataclass(frozen=True)
class Event:
    """One op as it ran: when it started, how long it took, and what was live.

    `allocated` comes from the framework's allocator: the most bytes allocated while the op ran, above those allocated
    before the run; None if it was not measured.
    """

    index: int
    op: Op
    start: float
    seconds: float
    live: Live
    allocated: int | None = None


class TapeSizes:
    """Follows the events of a run in order, and derives the bytes of each range's tape from those of all tapes."""

    def __init__(self) -> None:
        self._by_range: dict[tuple[int, int], int] = {}
        self._sum = 0

    def own(self, event: Event) -> int:
        """Bytes of the tape that a record stores or a pullback frees; 0 for other ops."""
        op, tape = event.op, event.live.tape
        if isinstance(op, Record):
            size = self._by_range[op.start, op.stop] = tape - self._sum
            self._sum = tape
            return size
        if isinstance(op, Pullback):
            size = self._by_range.pop((op.start, op.stop), 0)
            self._sum = tape - size
            return size
        return 0


@dataclass
class Totals:
    """Counts and sums over the ops of a run."""

    advances: int = 0
    records: int = 0
    ranges: int = 0
    ops: int = 0
    reached: int = 0  # the last state computed, which is the number of units that have run at least once
    seconds: float = 0.0
    keeps: dict[str, int] = field(default_factory=dict)
    fetches: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)  # bytes of the states kept, by level
    read: dict[str, int] = field(default_factory=dict)  # bytes of the states fetched, by level
    peaks: dict[str, int] = field(default_factory=dict)
    peak_index: int = -1
    allocated: int | None = None

    def count(self, machine: Machine, index: int, op: Op) -> None:
        """Add an op that the machine has just applied."""
        self._count(op)
        match op:
            case Keep(state, level):
                self.written[level] = self.written.get(level, 0) + machine.kept[level][state]
                if level != machine.device:
                    self.peaks[level] = max(self.peaks.get(level, 0), machine.kept_size[level])
            case Fetch(state, level):
                size = machine.kept[level][state] if level in machine.kept else machine.problem.state_size(state)
                self.read[level] = self.read.get(level, 0) + size
        size = machine.device_size
        if size > self.peaks[machine.device] or self.peak_index < 0:
            self.peaks[machine.device] = max(size, self.peaks[machine.device])
            self.peak_index = index

    def _count(self, op: Op) -> None:
        self.ops += 1
        match op:
            case Advance(start, stop):
                self.advances += stop - start
                self.reached = max(self.reached, stop)
            case Record(start, stop):
                self.records += stop - start
                self.ranges += 1
                self.reached = max(self.reached, stop)
            case Run(operation):  # operations run in order the first time, so an earlier one is a recomputation
                first = operation >= self.reached
                self.records, self.advances = self.records + first, self.advances + (not first)
                self.reached = max(self.reached, operation + 1)
            case Keep(_, level):
                self.keeps[level] = self.keeps.get(level, 0) + 1
            case Fetch(_, level):
                self.fetches[level] = self.fetches.get(level, 0) + 1

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Totals":
        """The totals of events, except the bytes of states kept and fetched, which events do not contain."""
        totals = cls()
        for event in events:
            totals._count(event.op)
            totals.seconds += event.seconds
            device = event.live.device
            if event.live.total() > totals.peaks.get(device, -1):
                totals.peak_index = event.index
            for level in dict.fromkeys((device, *event.live.state)):
                totals.peaks[level] = max(totals.peaks.get(level, 0), event.live.total(level))
            if event.allocated is not None:
                totals.allocated = max(totals.allocated or 0, event.allocated)
        return totals
