"""Events as columns of numbers: about sixty bytes per op, where objects would take a thousand.

Events are appended one by one, from a real run or a file; iterating builds the same events again.
"""

import math
import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from remat.errors import FileError, ScheduleError
from remat.ops import OP_TABLE, OPS_BY_TYPE, Op
from remat.schedule.events import Event
from remat.schedule.live import Live
from remat.schedule.notation import format_op, parse_lines

__all__ = ["Columns"]

_LARGEST = 2**62  # numbers in a file must be smaller


class Columns:
    """A list of events that only grows."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._levels: list[str] = []  # level names; `_second` has indices into it
        self._code, self._first, self._second = array("l"), array("q"), array("q")  # the code includes the option
        self._seconds = array("d")
        self._state: dict[str, array[int]] = {}
        self._tape, self._cotangent = array("q"), array("q")
        self._allocated: array[int] | None = None

    def append(self, op: Op, seconds: float, live: Live, allocated: int | None = None) -> None:
        """Add an event; if only some events have `allocated`, it is 0 for the others."""
        self._code.append(OPS_BY_TYPE[type(op)].code + len(OP_TABLE) * getattr(op, "option", 0))
        first, second = self._numbers(op)
        self._first.append(first)
        self._second.append(second)
        self._seconds.append(seconds)
        for level in live.state:
            if level not in self._state:
                self._state[level] = array("q", bytes(8 * len(self._tape)))
        for level, column in self._state.items():
            column.append(live.state.get(level, 0))
        self._tape.append(live.tape)
        self._cotangent.append(live.cotangent)
        if allocated is not None and self._allocated is None:
            self._allocated = array("q", bytes(8 * (len(self._tape) - 1)))
        if self._allocated is not None:
            self._allocated.append(allocated or 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = [self._code, self._first, self._second, self._seconds, self._tape, self._cotangent]
        columns += [*self._state.values(), *([] if self._allocated is None else [self._allocated])]
        return sum(sys.getsizeof(column) for column in columns)

    def __len__(self) -> int:
        return len(self._code)

    def __iter__(self) -> Iterator[Event]:
        start = 0.0
        for i in range(len(self)):  # a run may still be appending: read only the events added so far
            state = {level: column[i] for level, column in self._state.items()}
            live = Live(self.device, state, self._tape[i], self._cotangent[i])
            allocated = None if self._allocated is None else self._allocated[i]
            yield Event(i, self._op(i), start, self._seconds[i], live, allocated)
            start += self._seconds[i]

    def to_dict(self) -> dict[str, Any]:
        """The events as plain data: a list for each column, with ops as lines of text."""
        return {
            "ops": [format_op(self._op(i)) for i in range(len(self))],
            "seconds": list(self._seconds),
            "state": {level: list(column) for level, column in self._state.items()},
            "tape": list(self._tape),
            "cotangent": list(self._cotangent),
            "allocated": None if self._allocated is None else list(self._allocated),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], device: str) -> "Columns":
        """The events from plain data; raise a FileError for invalid data."""
        lines = data.get("ops")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise FileError('the saved trace is damaged: it has no list of lines under "ops"')
        try:
            ops = list(parse_lines(lines, "op"))
        except ScheduleError as error:
            raise FileError(f"the saved trace is damaged: {error}") from error
        count = len(ops)
        states = data.get("state")
        if not isinstance(states, dict):
            raise FileError('the saved trace is damaged: it has no columns under "state"')
        seconds = _column(data.get("seconds"), "seconds", count, float)
        state = {str(level): _column(column, f"state {level}", count, int) for level, column in states.items()}
        tape, cotangent = (_column(data.get(name), name, count, int) for name in ("tape", "cotangent"))
        allocated = data.get("allocated")
        peaks = None if allocated is None else _column(allocated, "allocated", count, int)
        columns = cls(device)
        for i, op in enumerate(ops):
            live = Live(device, {level: column[i] for level, column in state.items()}, tape[i], cotangent[i])
            columns.append(op, seconds[i], live, None if peaks is None else peaks[i])
        return columns

    def _numbers(self, op: Any) -> tuple[int, int]:
        spec = OPS_BY_TYPE[type(op)]
        if spec.is_range:
            return op.start, op.stop
        if spec.has_level:
            if op.level not in self._levels:
                self._levels.append(op.level)
            return op.state, self._levels.index(op.level)
        if spec.of_graphs:
            return getattr(op, spec.fields[0]), 0
        return 0, 0

    def _op(self, i: int) -> Op:
        option, code = divmod(self._code[i], len(OP_TABLE))
        spec, first, second = OP_TABLE[code], self._first[i], self._second[i]
        op: Op
        if spec.is_range:
            op = spec.op(start=first, stop=second, **({"option": option} if option else {}))
        elif spec.has_level:
            op = spec.op(state=first, level=self._levels[second])
        elif spec.of_graphs:
            op = spec.op(first)
        else:
            op = spec.op()
        return op


def _column(values: Any, name: str, count: int, number_type: type) -> list[Any]:
    if not isinstance(values, list) or len(values) != count:
        raise FileError(f"the saved trace is damaged: {name} is no list of {count} numbers, one for each op")
    for value in values:
        fits = type(value) is int or (number_type is float and type(value) is float and math.isfinite(value))
        if not fits or not 0 <= value < _LARGEST:
            raise FileError(f"the saved trace is damaged: {str(value)[:40]!r} in {name} is no number it can be")
    return values
