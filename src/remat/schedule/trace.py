"""Traces: what happens, or happened, op by op. Simulated and real runs share this type.

A trace has totals, the peak, what is live at the peak, and a re-iterable source of events. A simulated trace of a
million ops stores only its totals and simulates its events again at each iteration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from remat.errors import FileError
from remat.problem import Memory
from remat.problem.serialization import Serializable
from remat.schedule.display import Displayable
from remat.schedule.events import Event, Totals
from remat.schedule.live import LiveItem
from remat.schedule.trace_columns import Columns
from remat.units import bytes_text, count_text, time_text

__all__ = ["Trace"]


@dataclass(frozen=True, eq=False)
class Trace(Displayable, Serializable):
    """A run of a schedule: totals at once, events on demand.

    `events` can be iterated repeatedly; `keeps` and `fetches` count states moved per level. A `measured` trace is of a
    real run; unless `complete`, that run ended early. `always` holds the bytes that are live throughout and are not in
    the peak: parameters, inputs, outputs, gradients.
    """

    problem_units: int
    device: str
    totals: Totals
    events: Iterable[Event]
    find_holders: Callable[[int], tuple[LiveItem, ...]]
    memory: Memory | None = None
    measured: bool = False
    complete: bool = True
    always: Mapping[str, int] = field(default_factory=dict)
    timed: bool = True  # False: the problem has no times, and times are in multiples of a unit's forward time

    kind: ClassVar[str] = "trace"

    @property
    def advances(self) -> int:
        """Units run without a tape."""
        return self.totals.advances

    @property
    def records(self) -> int:
        """Units run with a tape."""
        return self.totals.records

    @property
    def forward_steps(self) -> int:
        """Units run in total."""
        return self.advances + self.records

    @property
    def recomputed(self) -> int:
        """Runs of units after each unit's first."""
        return self.forward_steps - self.totals.reached

    @property
    def seconds(self) -> float:
        """The total time of all ops."""
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
        """The most bytes live, by level."""
        return self.totals.peaks

    @property
    def peak(self) -> int:
        """The most bytes live on the device."""
        return self.totals.peaks.get(self.device, 0)

    @cached_property
    def at_peak(self) -> tuple[LiveItem, ...]:
        """What is live at the peak of the device: (what, level, bytes)."""
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
            ("at peak", _items_text(self.at_peak)),
            ("time", time_text(self.seconds, "step", timed=self.timed)),
        ]
        if self.totals.allocated is not None:
            rows.insert(5, ("measured", f"{bytes_text(self.totals.allocated)} allocated at the most"))
        if not self.complete:
            rows.append(("ended", f"early, after {count_text(self.totals.ops)} ops"))
        return "\n".join(f"{name:<9}{value}" for name, value in rows)

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data, with a list for each column of its events."""
        columns = Columns(self.device)
        for event in self.events:
            columns.append(event.op, event.seconds, event.live, event.allocated)
        return {
            "units": self.problem_units,
            "device": self.device,
            "measured": self.measured,
            "complete": self.complete,
            "timed": self.timed,
            "memory": None if self.memory is None else self.memory.envelope(),
            "always": dict(self.always),
            "at_peak": [list(holder) for holder in self.at_peak],
            "written": dict(self.totals.written),
            "read": dict(self.totals.read),
            **columns.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Trace":
        """The trace from plain data; raise a FileError for invalid data."""
        device, memory = str(data["device"]), data["memory"]
        columns = Columns.from_dict(data, device)
        totals = Totals.of(columns)
        totals.written, totals.read = _sizes(data["written"], "written"), _sizes(data["read"], "read")
        at_peak = tuple((str(what), str(level), _size(size, "at_peak")) for what, level, size in data["at_peak"])
        return cls(
            _size(data["units"], "units"),
            device,
            totals,
            columns,
            lambda _: at_peak,
            None if memory is None else Memory.from_envelope(memory),
            bool(data["measured"]),
            bool(data["complete"]),
            _sizes(data["always"], "always"),
            bool(data.get("timed", data["measured"])),
        )


def _size(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise FileError(f"the saved trace is damaged: {str(value)[:40]!r} in {name} is no whole number it can be")
    return value


def _sizes(value: Any, name: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise FileError(f"the saved trace is damaged: {name} is no table of sizes")
    return {str(key): _size(size, name) for key, size in value.items()}


def _items_text(holders: tuple[LiveItem, ...]) -> str:
    largest = sorted((holder for holder in holders if holder[2]), key=lambda h: -h[2])
    shown = ", ".join(f"{what} ({bytes_text(size)})" for what, _, size in largest[:6])
    return shown + (f" and {len(largest) - 6} more" if len(largest) > 6 else "")
