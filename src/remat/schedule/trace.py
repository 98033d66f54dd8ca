"""What happens, or happened, op by op: the one form that the simulator and the executors both fill.

In: events, as a source that can be read again. Out: totals, the peak, and who is live there. A trace of a million ops
holds its totals only; its events are made anew when they are iterated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat.schedule.ops import Advance, Fetch, Keep, Op, Record
from remat.units import bytes_text, count_text

if TYPE_CHECKING:
    from remat.schedule.machine import Machine

__all__ = ["Event", "Holder", "Live", "Totals", "Trace"]

Holder = tuple[str, str, int]  # what, level, bytes


@dataclass(frozen=True)
class Live:
    """Bytes live while an op runs: states by level (the working state on the device), tapes, cotangents."""

    device: str
    state: Mapping[str, int]
    tape: int
    cotangent: int

    def size(self, level: str, kind: str) -> int:
        """Bytes of one kind ("state", "tape" or "cotangent") in one level."""
        if kind == "state":
            return self.state.get(level, 0)
        return (self.tape if kind == "tape" else self.cotangent) if level == self.device else 0

    def total(self, level: str | None = None) -> int:
        """Bytes of all kinds in `level` (default: the device)."""
        level = self.device if level is None else level
        return sum(self.size(level, kind) for kind in ("state", "tape", "cotangent"))


@dataclass(frozen=True)
class Event:
    """One op as it ran: when it started, how long it took, and what was live."""

    index: int
    op: Op
    start: float
    seconds: float
    live: Live


@dataclass
class Totals:
    """Counts and sums over the ops of a run."""

    advances: int = 0
    records: int = 0
    ranges: int = 0
    ops: int = 0
    seconds: float = 0.0
    keeps: dict[str, int] = field(default_factory=dict)
    fetches: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    peak_index: int = -1

    def count(self, machine: "Machine", index: int, op: Op) -> None:
        """Add an op that the machine has just carried out."""
        self.ops += 1
        match op:
            case Advance(start, stop):
                self.advances += stop - start
            case Record(start, stop):
                self.records += stop - start
                self.ranges += 1
            case Keep(_, level):
                self.keeps[level] = self.keeps.get(level, 0) + 1
                if level != machine.device:
                    self.peaks[level] = max(self.peaks.get(level, 0), machine.kept_size[level])
            case Fetch(_, level):
                self.fetches[level] = self.fetches.get(level, 0) + 1
        size = machine.device_size
        if size > self.peaks[machine.device] or self.peak_index < 0:
            self.peaks[machine.device] = max(size, self.peaks[machine.device])
            self.peak_index = index


@dataclass(frozen=True, eq=False)
class Trace:
    """A run of a schedule: totals at once, events on demand.

    `events` is iterated as often as one likes; `keeps` and `fetches` count states moved per level.
    """

    problem_units: int
    device: str
    totals: Totals
    events: Iterable[Event]
    find_holders: Callable[[int], tuple[Holder, ...]]

    @property
    def advances(self) -> int:
        """Units run without tape."""
        return self.totals.advances

    @property
    def records(self) -> int:
        """Units run with tape."""
        return self.totals.records

    @property
    def forward_steps(self) -> int:
        """Units run in all."""
        return self.advances + self.records

    @property
    def recomputed(self) -> int:
        """Forward evaluations after each unit's first."""
        return self.forward_steps - self.problem_units

    @property
    def seconds(self) -> float:
        """The time of all ops."""
        return self.totals.seconds

    @property
    def keeps(self) -> Mapping[str, int]:
        """States written, by level."""
        return self.totals.keeps

    @property
    def fetches(self) -> Mapping[str, int]:
        """States read, by level."""
        return self.totals.fetches

    @property
    def peaks(self) -> Mapping[str, int]:
        """The largest bytes live, by level."""
        return self.totals.peaks

    @property
    def peak(self) -> int:
        """The largest bytes live on the device."""
        return self.totals.peaks.get(self.device, 0)

    @property
    def at_peak(self) -> tuple[Holder, ...]:
        """Who is live at the peak of the device: (what, level, bytes)."""
        return self.find_holders(self.totals.peak_index)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __str__(self) -> str:
        moved = ", ".join(
            f"{level} {count_text(self.keeps.get(level, 0))} kept, {count_text(self.fetches.get(level, 0))} fetched"
            for level in sorted(set(self.keeps) | set(self.fetches))
        )
        rows = [
            ("ops", f"{count_text(self.totals.ops)} ({count_text(self.totals.ranges)} recorded ranges)"),
            (
                "steps",
                f"{count_text(self.forward_steps)} forward = {count_text(self.records)} recorded + "
                f"{count_text(self.advances)} advanced; {count_text(self.recomputed)} recomputed",
            ),
            ("states", moved or "none kept"),
            ("peak", ", ".join(f"{level} {bytes_text(size)}" for level, size in self.peaks.items())),
            ("at peak", _who(self.at_peak)),
            ("time", f"{self.seconds:.6g}"),
        ]
        return "\n".join(f"{name:<9}{value}" for name, value in rows)


def _who(holders: tuple[Holder, ...]) -> str:
    largest = sorted(holders, key=lambda h: -h[2])
    shown = ", ".join(f"{what} ({bytes_text(size)})" for what, _, size in largest[:6])
    return shown + (f" and {len(largest) - 6} more" if len(largest) > 6 else "")
