"""A schedule: a value made of ops, which streams.

In: ops, as a tuple or as a *source* that makes a fresh iterator each time (the planners' way; a million-step schedule
is then a handful of numbers). Out: something to iterate as often as one likes, compare, print, save and load.
"""

from collections.abc import Iterable, Iterator, Sized
from itertools import chain, islice, zip_longest
from pathlib import Path

from remat.errors import ScheduleError
from remat.ops import Op, Pullback, Record, Turn  # noqa: F401 (used in the doctest)
from remat.schedule.notation import HEADER, ScheduleFile, format_op, parse_text

__all__ = ["Schedule"]


class Schedule:
    """A sequence of ops that is re-iterable, comparable and printable, and is made op by op while it is iterated.

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
        # A one-shot iterator could be read only once, and a container could change: copy their ops.
        copied = isinstance(ops, Sized) or iter(ops) is ops
        self._source: Iterable[Op] = tuple(ops) if copied else ops

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """The schedule that a text spells."""
        return cls(tuple(parse_text(text)))

    @classmethod
    def load(cls, path: str | Path) -> "Schedule":
        """The schedule in a text file."""
        return cls(tuple(ScheduleFile(path)))

    def save(self, path: str | Path) -> None:
        """Write the schedule to `path` as text, under a line that states the version."""
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in chain([HEADER], self.lines()))

    @property
    def source(self) -> Iterable[Op]:
        """What makes its ops: a compact form such as `RevolveOps`, or a tuple of the ops themselves."""
        return self._source

    def ops(self) -> tuple[Op, ...]:
        """All ops at once, in memory."""
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
