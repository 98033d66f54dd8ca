"""The rows of a timeline: columns of numbers, one row for each event or for each group of events.

In: events, in order. Out: lists that are drawn, printed and packed.
"""

from dataclasses import dataclass, field

from remat.schedule import Advance, Event, Op, Pullback, Record, Turn

__all__ = ["Rows"]


@dataclass
class Rows:
    """The columns: one row for each event, or for each group of them."""

    index: list[int] = field(default_factory=list)  # of the event that the row shows
    op: list[Op] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    state: list[int] = field(default_factory=list)  # on the device, the working state included
    tape: list[int] = field(default_factory=list)
    ramp: list[int] = field(default_factory=list)  # tapes at the other end of a range: where they grow from, or fall to
    cotangent: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)  # empty where nobody asked the allocator
    held: list[int] = field(default_factory=list)  # how many states are kept, in all levels
    low: list[int] = field(default_factory=list)  # the units that the ops of the row touch: low..high-1
    high: list[int] = field(default_factory=list)
    elsewhere: dict[str, list[int]] = field(default_factory=dict)  # states in the other levels
    _times: list[float] = field(default_factory=list)  # seconds of the last row, by phase

    def __len__(self) -> int:
        return len(self.op)

    def total(self, row: int) -> int:
        """Bytes live on the device."""
        return self.state[row] + self.tape[row] + self.cotangent[row]

    def live(self, row: int, place: float) -> tuple[int, int, int]:
        """States, tapes, cotangents at a place (0 to 1) of a row: a range's tape grows and falls step by step."""
        tape, ramp = self.tape[row], self.ramp[row]
        if tape != ramp:
            tape = round(tape + (ramp - tape) * (place if isinstance(self.op[row], Pullback) else 1 - place))
        return self.state[row], tape, self.cotangent[row]

    def add(self, event: Event, phase: int, ramp: int) -> None:
        """A new row."""
        live = event.live
        self.index.append(event.index)
        self.op.append(event.op)
        self.phase.append(phase)
        self.start.append(event.start)
        self.seconds.append(event.seconds)
        self.state.append(live.state.get(live.device, 0))
        self.tape.append(live.tape)
        self.ramp.append(ramp)
        self.held.append(0)
        self._times = [0.0] * 4
        self._times[phase] = event.seconds
        self.cotangent.append(live.cotangent)
        self._find_levels(event, len(self) - 1)
        for level, column in self.elsewhere.items():
            column.append(live.state.get(level, 0))
        if event.allocated is not None:
            self.allocated.append(event.allocated)
        low, high = _touched(event.op)
        self.low.append(low)
        self.high.append(high)

    def join(self, event: Event, phase: int) -> None:
        """Put an event into the last row: it shows whichever has more live bytes."""
        live = event.live
        if live.total() > self.total(-1):
            self.index[-1], self.op[-1] = event.index, event.op
            self.state[-1], self.tape[-1], self.cotangent[-1] = (
                live.state.get(live.device, 0),
                live.tape,
                live.cotangent,
            )
        self._find_levels(event, len(self))
        for level, column in self.elsewhere.items():
            column[-1] = max(column[-1], live.state.get(level, 0))
        if self.allocated:
            self.allocated[-1] = max(self.allocated[-1], event.allocated or 0)
        low, high = _touched(event.op)
        self.low[-1], self.high[-1] = min(self.low[-1], low), max(self.high[-1], high)
        self.seconds[-1] += event.seconds
        self._times[phase] += event.seconds
        self.phase[-1] = self._times.index(max(self._times))  # what it does most of the time
        self.ramp[-1] = self.tape[-1]  # a group is flat

    def _find_levels(self, event: Event, rows: int) -> None:
        """A level that is new held nothing in the rows before."""
        for level in event.live.state:
            if level != event.live.device and level not in self.elsewhere:
                self.elsewhere[level] = [0] * rows


def _touched(op: Op) -> tuple[int, int]:
    if isinstance(op, Advance | Record | Pullback):
        return op.start, op.stop
    return (0, 0) if isinstance(op, Turn) else (op.state, op.state)
