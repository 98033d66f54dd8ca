"""The rows of a timeline: columns of numbers with one row per event, or per group of events."""

from dataclasses import dataclass, field

from remat.schedule import Advance, Event, Free, Op, Pullback, Record, Run, Turn

__all__ = ["Rows"]


@dataclass
class Rows:
    """The columns, as lists that are drawn, printed and encoded."""

    index: list[int] = field(default_factory=list)  # of the event that the row shows
    op: list[Op] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    state: list[int] = field(default_factory=list)  # on the device, including the working state
    tape: list[int] = field(default_factory=list)
    # The fewest tape bytes while the op runs: recording a range grows from there, pulling it back falls to it.
    least_tape: list[int] = field(default_factory=list)
    cotangent: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)  # empty if it was not measured
    kept_count: list[int] = field(default_factory=list)  # number of states kept in all levels
    first_unit: list[int] = field(default_factory=list)  # the ops of the row touch units first_unit..stop_unit-1
    stop_unit: list[int] = field(default_factory=list)
    elsewhere: dict[str, list[int]] = field(default_factory=dict)  # bytes of states in each other level
    _seconds_by_phase: list[float] = field(default_factory=list)  # of the last row

    def __len__(self) -> int:
        return len(self.op)

    def total(self, row: int) -> int:
        """Bytes live on the device."""
        return self.state[row] + self.tape[row] + self.cotangent[row]

    def live(self, row: int, place: float) -> tuple[int, int, int]:
        """States, tapes, cotangents at a point (0 to 1) within a row: a range's tape grows or falls step by step."""
        tape, least = self.tape[row], self.least_tape[row]
        if tape != least:
            tape = round(tape + (least - tape) * (place if isinstance(self.op[row], Pullback) else 1 - place))
        return self.state[row], tape, self.cotangent[row]

    def add(self, event: Event, phase: int, least_tape: int) -> None:
        """Add a row for an event."""
        live = event.live
        self.index.append(event.index)
        self.op.append(event.op)
        self.phase.append(phase)
        self.start.append(event.start)
        self.seconds.append(event.seconds)
        self.state.append(live.state.get(live.device, 0))
        self.tape.append(live.tape)
        self.least_tape.append(least_tape)
        self.kept_count.append(0)
        self._seconds_by_phase = [0.0] * 4
        self._seconds_by_phase[phase] = event.seconds
        self.cotangent.append(live.cotangent)
        self._add_levels(event, len(self) - 1)
        for level, column in self.elsewhere.items():
            column.append(live.state.get(level, 0))
        if event.allocated is not None:
            self.allocated.append(event.allocated)
        first, stop = _touched_units(event.op)
        self.first_unit.append(first)
        self.stop_unit.append(stop)

    def join(self, event: Event, phase: int) -> None:
        """Join an event to the last row, which shows the event of its group with the most live bytes."""
        live = event.live
        if live.total() > self.total(-1):
            self.index[-1], self.op[-1] = event.index, event.op
            self.state[-1], self.tape[-1], self.cotangent[-1] = (
                live.state.get(live.device, 0),
                live.tape,
                live.cotangent,
            )
        self._add_levels(event, len(self))
        for level, column in self.elsewhere.items():
            column[-1] = max(column[-1], live.state.get(level, 0))
        if self.allocated:
            self.allocated[-1] = max(self.allocated[-1], event.allocated or 0)
        first, stop = _touched_units(event.op)
        self.first_unit[-1], self.stop_unit[-1] = min(self.first_unit[-1], first), max(self.stop_unit[-1], stop)
        self.seconds[-1] += event.seconds
        self._seconds_by_phase[phase] += event.seconds
        self.phase[-1] = self._seconds_by_phase.index(max(self._seconds_by_phase))  # the phase that takes most time
        self.least_tape[-1] = self.tape[-1]  # a group is drawn flat

    def _add_levels(self, event: Event, rows: int) -> None:
        """Add a column for each level that first appears in this event, with 0 bytes in the rows before."""
        for level in event.live.state:
            if level != event.live.device and level not in self.elsewhere:
                self.elsewhere[level] = [0] * rows


def _touched_units(op: Op) -> tuple[int, int]:
    if isinstance(op, Advance | Record | Pullback):
        return op.start, op.stop
    if isinstance(op, Run):
        return op.operation, op.operation + 1
    return (0, 0) if isinstance(op, Turn | Free) else (op.state, op.state)
