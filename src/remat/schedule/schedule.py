"""A schedule: a sequence of ops that can be iterated repeatedly, compared, printed, saved and loaded.

Its ops come from a tuple, or from a *source* that makes a new iterator each time. Planners use sources: a schedule of a
million steps is then a handful of numbers.
"""

from collections.abc import Iterable, Iterator, Sized
from itertools import chain, islice, zip_longest
from pathlib import Path

from remat.errors import ScheduleError
from remat.ops import Op, Pullback, Record, Turn  # noqa: F401 (used in the doctest)
from remat.schedule.notation import HEADER, ScheduleFile, format_op, parse_text

__all__ = ["Schedule"]


class Schedule:
    """A sequence of ops that is re-iterable, comparable and printable, and is generated while it is iterated.

    >>> schedule = Schedule.parse("record 0 1\\nturn\\npullback 1 0")
    >>> schedule
    Schedule('record 0 1; turn; pullback 1 0')
    >>> schedule == Schedule([Record(0, 1), Turn(), Pullback(1, 0)])
    True
    """

    __slots__ = ("_source",)

    def __init__(self, ops: Iterable[Op]) -> None:
        if isinstance(ops, str | bytes):
            raise ScheduleError("a schedule is made of ops; for text use Schedule.parse")
        # Copy the ops of one-shot iterators, which can be read only once, and of containers, which may change.
        copied = isinstance(ops, Sized) or iter(ops) is ops
        self._source: Iterable[Op] = tuple(ops) if copied else ops

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """The schedule in a text."""
        return cls(tuple(parse_text(text)))

    @classmethod
    def load(cls, path: str | Path) -> "Schedule":
        """The schedule in a text file."""
        return cls(tuple(ScheduleFile(path)))

    def save(self, path: str | Path) -> None:
        """Write the schedule to `path` as text, after a line that states the version."""
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in chain([HEADER], self.lines()))

    @property
    def source(self) -> Iterable[Op]:
        """Where the ops come from: a compact form such as `RevolveOps`, or a tuple of ops."""
        return self._source

    def ops(self) -> tuple[Op, ...]:
        """All ops as a tuple."""
        return tuple(self)

    def lines(self) -> Iterator[str]:
        """The text form, line by line."""
        return map(format_op, self)

    def __iter__(self) -> Iterator[Op]:
        return iter(self._source)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        if self._source is other._source:
            return True
        if type(self._source) is type(other._source) and self._source == other._source:
            return True
        return all(a == b for a, b in zip_longest(self, other))

    def __hash__(self) -> int:
        return hash(tuple(islice(self, 64)))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        shown = [format_op(op) for op in islice(self, 13)]
        return f"Schedule({'; '.join(shown[:12]) + ('; …' if len(shown) > 12 else '')!r})"
