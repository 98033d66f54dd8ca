"""The timeline of a trace: the numbers that every format of a report draws or prints.

From any `Trace`, simulated or measured, complete or not, it computes live bytes by kind over time, phases, the peak,
how often each unit ran, and which states were kept when. If a trace has more than `MOST_EVENTS` events, they are
grouped; a group shows its moment of most live bytes, so that no peak is lost.
"""

from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import ceil

from remat.progress import report_progress
from remat.reporting.timeline_rows import Rows
from remat.schedule import Advance, Drop, Event, Keep, Op, Pullback, Record, Run, Trace, Turn
from remat.schedule.events import TapeSizes

__all__ = ["MOST_EVENTS", "PHASES", "Kept", "Moment", "Timeline"]

MOST_EVENTS = 100_000  # traces of up to this many events have a row for each
GROUPS = 50_000  # rows of a longer trace
MOST_KEPT = 2_000  # bars of kept states of a longer trace; the longest are shown
MOST_UNITS = 10_000_000  # runs of each unit are counted in loops of up to this many units
PHASES = ("forward", "recompute", "backward", "move")  # move: keep, fetch, drop, turn


@dataclass(frozen=True)
class Moment:
    """One op of the timeline: its phase, its live bytes, and the time at which they are live.

    A record has most bytes live at its end.
    """

    index: int
    row: int
    op: Op
    phase: str
    time: float
    size: int


@dataclass(frozen=True)
class Kept:
    """A state in a level, from one row of the timeline to another (the last, if it is never dropped)."""

    state: int
    level: str
    first: int
    last: int


@dataclass(frozen=True)
class Timeline:
    """Everything that a report shows about one trace."""

    trace: Trace
    rows: Rows
    group: int  # events per row
    peak: Moment | None
    turn: int | None  # the row of the turn
    seconds: dict[str, float]  # by phase
    advancing: float  # seconds of running steps without a tape, in both sweeps, and of recomputing operations
    kept: tuple[Kept, ...]
    runs: tuple[tuple[int, int, int], ...]  # (start, stop, times): units start..stop-1 were run that many times

    @classmethod
    def of(cls, trace: Trace, most: int | None = None) -> "Timeline":
        """The timeline of a trace, with at most `most` rows, in one pass over its events."""
        count = trace.totals.ops
        group = 1 if count <= MOST_EVENTS else -(-count // GROUPS)
        group = group if most is None else max(group, -(-count // most))
        rows, reached, turn = Rows(), 0, None
        seconds, advancing = dict.fromkeys(PHASES, 0.0), 0.0
        peak: Moment | None = None
        runs = _Runs(max(trace.problem_units, trace.totals.reached))
        kept = _Kept()
        tapes = TapeSizes()
        for event in trace:
            op = event.op
            phase = _phase(event, reached)
            seconds[PHASES[phase]] += event.seconds
            own_tape = tapes.own(event)
            is_range = isinstance(op, Record | Pullback) and op.stop - op.start > 1
            if event.index % group == 0:
                rows.add(event, phase, event.live.tape - (own_tape if is_range else 0))
            else:
                rows.join(event, phase)
            row = len(rows) - 1
            if isinstance(op, Advance | Record):
                reached = max(reached, op.stop)
                runs.add(op.start, op.stop)
                advancing += event.seconds if isinstance(op, Advance) else 0.0
            elif isinstance(op, Run):
                advancing += event.seconds if op.operation < reached else 0.0
                reached = max(reached, op.operation + 1)
                runs.add(op.operation, op.operation + 1)
            elif isinstance(op, Turn):
                turn = row
            else:
                kept.add(op, row)
            if rows.index[-1] == event.index:
                rows.kept_count[-1] = kept.count
            if event.index == trace.totals.peak_index:
                size = event.live.total()
                time = event.start + (event.seconds if isinstance(op, Record) else 0.0)
                peak = Moment(event.index, row, op, PHASES[phase], time, size)
            if event.index % 10_000 == 0:
                report_progress(event.index, count)
        bars = kept.all(len(rows) - 1)
        if group > 1:
            bars = sorted(bars, key=lambda bar: bar.first - bar.last)[:MOST_KEPT]
        return cls(trace, rows, group, peak, turn, seconds, advancing, tuple(bars), runs.all())

    @property
    def span(self) -> float:
        """The total time of all events."""
        return self.rows.start[-1] + self.rows.seconds[-1] if len(self.rows) else 0.0

    def place(self, row: int) -> tuple[float, float]:
        """Where a row begins and ends on an axis from 0 to 1: of time, or of ops if no op takes any time."""
        if self.span > 0:
            start = self.rows.start[row] / self.span
            return start, min(1.0, start + self.rows.seconds[row] / self.span)
        return row / len(self.rows), (row + 1) / len(self.rows)

    def envelope(self, bins: int) -> list[tuple[int, int, int]]:
        """The most live bytes in each of `bins` equal parts of the axis: states, tapes, cotangents."""
        best = [(0, 0, 0)] * bins
        for row in range(len(self.rows)):
            first, last = self.place(row)
            begin = min(bins - 1, int(first * bins))
            for i in range(begin, min(bins, max(begin + 1, ceil(last * bins)))):
                overlap = (max(first, i / bins), min(last, (i + 1) / bins))
                places = [(x - first) / (last - first) for x in overlap] if last > first else [0.0, 1.0]
                live = max((self.rows.live(row, min(1.0, place)) for place in places), key=sum)
                best[i] = max(best[i], live, key=sum)
        return best

    def doing(self, bins: int) -> list[int]:
        """A phase for each of `bins` equal parts of the axis, in proportion to the phases' shares of the time.

        Each part gets the phase that is most in arrears among those that it contains (error diffusion).
        """
        shares = [[0.0] * len(PHASES) for _ in range(bins)]
        for row in range(len(self.rows)):
            first, last = self.place(row)
            i = int(first * bins)
            while i < bins and i < last * bins:
                shares[i][self.rows.phase[row]] += min(last, (i + 1) / bins) - max(first, i / bins)
                i += 1
        phases, arrears = list[int](), [0.0] * len(PHASES)
        for share in shares:
            total = sum(share) or 1.0
            arrears = [owed + own / total for owed, own in zip(arrears, share, strict=True)]
            candidates = [owed if own else -1.0 for owed, own in zip(arrears, share, strict=True)]
            phases.append(candidates.index(max(candidates)))
            arrears[phases[-1]] -= 1.0
        return phases

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes by kind at the peak; they sum to the trace's peak."""
        if self.peak is None:
            return {}
        row = self.peak.row
        return {"state": self.rows.state[row], "tape": self.rows.tape[row], "cotangent": self.rows.cotangent[row]}

    @property
    def histogram(self) -> dict[int, int]:
        """How many units ran once, twice, and so on: number of runs → number of units."""
        units: Counter[int] = Counter()
        for start, stop, times in self.runs:
            units[times] += stop - start
        return dict(sorted(units.items()))


def _phase(event: Event, reached: int) -> int:
    op = event.op
    if isinstance(op, Advance | Record):
        return 1 if op.start < reached else 0
    if isinstance(op, Run):  # an operation that first runs while there are cotangents is of the backward
        return 1 if op.operation < reached else 2 if event.live.cotangent else 0
    return 2 if isinstance(op, Pullback) else 3


class _Runs:
    """Counts how often each unit runs, as an array of changes from unit to unit: adding a range is two additions."""

    def __init__(self, units: int) -> None:
        self._changes = array("q", bytes(8 * (units + 1))) if units <= MOST_UNITS else array("q")

    def add(self, start: int, stop: int) -> None:
        if stop < len(self._changes):
            self._changes[start] += 1
            self._changes[stop] -= 1

    def all(self) -> tuple[tuple[int, int, int], ...]:
        ranges, start = list[tuple[int, int, int]](), 0
        for times, units in groupby(list(accumulate(self._changes))[:-1]):
            stop = start + sum(1 for _ in units)
            ranges.append((start, stop, times))
            start = stop
        return tuple(ranges)


class _Kept:
    """Collects from which row to which row each state is kept."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], int] = {}
        self._closed: list[Kept] = []

    def add(self, op: Op, row: int) -> None:
        if isinstance(op, Keep):
            self._open[op.state, op.level] = row
        elif isinstance(op, Drop) and (op.state, op.level) in self._open:
            self._closed.append(Kept(op.state, op.level, self._open.pop((op.state, op.level)), row))

    @property
    def count(self) -> int:
        return len(self._open)

    def all(self, last: int) -> list[Kept]:
        return self._closed + [Kept(state, level, first, last) for (state, level), first in self._open.items()]
