"""What is live while a schedule runs: the one model that `verify` and `simulate` share.

A machine starts from a problem and applies legal ops one by one. After each op it has the kept states, the tapes, the
cotangent in flight, and the bytes that were live *while the op ran*. Its memory grows with what is live, never with the
length of the schedule.
"""

from bisect import bisect_left

from remat.ops import Advance, Drop, Fetch, Free, Keep, Op, Pullback, Record, Run, Turn
from remat.problem import Memory, Sizes
from remat.schedule.live import Live, LiveItem

__all__ = ["Machine", "ranges_text"]


class Machine:
    """The state of a run between two ops, and the bytes live during the last one."""

    def __init__(self, problem: Sizes, memory: Memory | None = None) -> None:
        self.problem = problem
        self.memory = memory  # None: levels of any name, without limit
        self.units = problem.units
        self.device = device = "ram" if memory is None else memory.device.name
        self.working: int | None = 0  # the number of the working state
        self.cotangent: int | None = None  # the state whose cotangent is in flight; None before Turn
        self.kept: dict[str, dict[int, int]] = {}  # level → state → bytes
        self.kept_size: dict[str, int] = {device: 0}
        self.tapes: list[tuple[int, int, int]] = []  # (start, stop, bytes), by start
        # Bytes while the last op ran, besides kept states: tapes, what units run with, cotangents.
        self.tape_size = 0
        self.running_size = problem.state_size(0)
        self.pulling_size = 0
        self.just_recorded_size = 0  # bytes of the tape that the last op recorded; slots do not count it yet
        self._after_tape = 0  # bytes of tapes after the last op
        self._pulled_back: tuple[int, ...] = ()  # the first and the last unit of the last pullback
        self._resting_cotangent = 0  # bytes of the cotangent in flight between ops

    @property
    def device_size(self) -> int:
        """Bytes live on the device while the last op ran."""
        return self.state_size + self.tape_size + self.running_size + self.pulling_size

    @property
    def state_size(self) -> int:
        """Bytes of states held on the device while the last op ran, without those it worked on."""
        return self.kept_size[self.device]

    @property
    def held_size(self) -> int:
        """Bytes of tapes stored for later: all but the one just recorded, which may be pulled back at once."""
        return self._after_tape - self.just_recorded_size

    def unrepeatable(self, start: int, stop: int) -> int | None:
        """The first of these units that must not run twice, or None."""
        return None

    def option_count(self, start: int, stop: int) -> int:
        """The number of options that all of these units have; only stages of chains have more than one."""
        return 1

    def find_tape(self, start: int, stop: int) -> int | None:
        """The index of the tape of exactly units start..stop-1, or None."""
        place = bisect_left(self.tapes, (start,))
        if place < len(self.tapes) and self.tapes[place][:2] == (start, stop):
            return place
        return None

    def overlapping_tape(self, start: int, stop: int) -> tuple[int, int] | None:
        """The range of a tape that overlaps units start..stop-1, or None."""
        place = bisect_left(self.tapes, (start,))
        for near in self.tapes[max(0, place - 1) : place + 1]:
            if near[0] < stop and start < near[1]:
                return near[:2]
        return None

    def tape_ending_at(self, state: int) -> bool:
        """Whether a tape ends at `state`; if tapes contain outputs, it contains that state."""
        place = bisect_left(self.tapes, (state,)) - 1
        return place >= 0 and self.tapes[place][1] == state

    def apply(self, op: Op) -> None:
        """Apply one legal op."""
        self.tape_size = self._after_tape
        getattr(self, _APPLY[type(op)])(op)

    def _advance(self, op: Advance) -> None:
        self._run(op.start, op.stop, record=False)
        self.just_recorded_size = 0

    def _record(self, op: Record) -> None:
        self._run(op.start, op.stop, record=True)
        size = self.problem.tape_size(op.start, op.stop)
        self.tapes.insert(bisect_left(self.tapes, (op.start,)), (op.start, op.stop, size))
        self.tape_size = self._after_tape = self.tape_size + size
        self.just_recorded_size = size

    def _pullback(self, op: Pullback) -> None:
        place = self.find_tape(op.start, op.stop)
        assert place is not None
        self._after_tape -= self.tapes.pop(place)[2]
        self.cotangent, self._pulled_back = op.start, (op.start, op.stop - 1)
        self._resting_cotangent = self.problem.state_size(op.start)
        if self.working is not None and self.working >= op.start:
            self.working = None  # nothing uses a state at or after the cotangent's
        self._settle()
        self.pulling_size = self.problem.pulling_size(op.start, op.stop)
        self.just_recorded_size = 0

    def _keep(self, op: Keep) -> None:
        size = self.problem.state_size(op.state)
        self.kept.setdefault(op.level, {})[op.state] = size
        self.kept_size[op.level] = self.kept_size.get(op.level, 0) + size
        self._settle()
        self.just_recorded_size = 0

    def _fetch(self, op: Fetch) -> None:
        self.working = op.state
        self._settle()
        self.just_recorded_size = 0

    def _drop(self, op: Drop) -> None:
        self.kept_size[op.level] -= self.kept[op.level].pop(op.state)
        self._settle()

    def _turn(self, op: Turn) -> None:
        self.working, self.cotangent = None, self.units
        self._resting_cotangent = self.problem.state_size(self.units)
        self._settle()

    def holders(self) -> list[LiveItem]:
        """Everything live as (what, level, bytes), kept states first."""
        named = self._named
        items: list[LiveItem] = [
            (f"state {s}{named(s)}", level, size) for level, kept in self.kept.items() for s, size in kept.items()
        ]
        items += [(f"tape {_range(a, b)}{named(a, b - 1)}", self.device, size) for a, b, size in self.tapes]
        stored = sum(size for _, _, size in self.tapes)
        if self.tape_size > stored:  # a pullback, whose tape is freed after it ran
            what = f"tape pulled back{named(*self._pulled_back)}"
            items.append((what, self.device, self.tape_size - stored))
        if self.running_size:
            items.append(("working state", self.device, self.running_size))
        if self.pulling_size:
            items.append(("cotangent", self.device, self.pulling_size))
        return items

    def live(self) -> Live:
        """Bytes by level and kind while the last op ran."""
        state = {**self.kept_size, self.device: self.state_size + self.running_size}
        return Live(self.device, state, self.tape_size, self.pulling_size)

    def describe(self) -> str:
        """What is live now, as text for error messages."""
        kept = [f"{state} in {level}" for level, states in self.kept.items() for state in states]
        tapes = [f"{start}..{stop - 1}" for start, stop, _ in self.tapes]
        sentences = [
            f"working state {'none' if self.working is None else self.working}",
            f"kept {_some(kept)}",
            f"tapes {_some(tapes)}",
        ]
        if self.cotangent is not None:
            sentences.append(f"cotangent of state {self.cotangent}")
        return ", ".join(sentences)

    def _named(self, *units: int) -> str:
        """The names of these units, to put after their numbers: " (first to last)"; empty if they have none."""
        names = dict.fromkeys(filter(None, map(self.problem.unit_name, units)))
        return f" ({' to '.join(names)})" if names else ""

    def _run(self, start: int, stop: int, *, record: bool) -> None:
        self.working = stop
        self.running_size = self.problem.running_size(start, stop, record=record)
        self.pulling_size = self._resting_cotangent

    def _settle(self) -> None:
        self.running_size = 0 if self.working is None else self.problem.state_size(self.working)
        self.pulling_size = self._resting_cotangent


_APPLY = {
    Advance: "_advance",
    Record: "_record",
    Pullback: "_pullback",
    Keep: "_keep",
    Fetch: "_fetch",
    Drop: "_drop",
    Turn: "_turn",
    Run: "_run_operation",  # this one and the next are in GraphMachine
    Free: "_free_storage",
}


def _range(start: int, stop: int) -> str:
    return f"{start}..{stop - 1}" if stop - start > 1 else str(start)


def ranges_text(numbers: list[int]) -> str:
    """Sorted numbers as text, consecutive ones as ranges.

    >>> ranges_text([0, 1, 2, 5])
    '0..2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return _some([_range(start, stop) for start, stop in runs])


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
