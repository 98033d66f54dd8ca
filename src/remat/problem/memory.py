"""Memory: the levels where states are kept, fastest first, and the capacity of each.

The first level is the device, where tapes, the working state and cotangents live too. A capacity in *bytes* bounds the
whole peak of the device. A capacity in *slots* is the budget of the literature, in units of one state: kept states and
stored tapes count; the working state, cotangents and a tape that is pulled back right after it was recorded do not.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Union

from remat.errors import ProblemError
from remat.problem.serialization import Serializable
from remat.units import bandwidth_text, bytes_text, count_text, to_bytes, to_count, to_seconds_per_byte

__all__ = ["Level", "Memory"]

Capacity = Union[int, str, "Memory", None]


@dataclass(frozen=True, init=False)
class Level:
    """One place for states: its name, its capacity in bytes or in slots (if both are None: no limit), and its speed.

    `read` and `write` are the costs of fetching and keeping a state: seconds per byte, or text such as "25 GB/s".

    >>> print(Level("disk", "2 GiB", read=1e-9, write=2e-9))
    disk 2 GiB (read 1 GB/s, write 500 MB/s)
    """

    name: str
    capacity: int | None
    slots: int | None
    read: float
    write: float

    def __init__(
        self,
        name: str,
        capacity: int | str | None = None,
        *,
        slots: int | None = None,
        read: float | str = 0.0,
        write: float | str = 0.0,
    ) -> None:
        if not isinstance(name, str) or not name.isprintable() or not name or any(map(str.isspace, name)):
            raise ProblemError(f"a level's name is one word, not {name!r}")
        if name == "tape":
            raise ProblemError('a level cannot be called "tape": "fetch 9 tape" takes a state from a held tape')
        if capacity is not None and slots is not None:
            raise ProblemError(f"level {name!r}: give a capacity in bytes or in slots, not both")
        put = object.__setattr__
        put(self, "name", name)
        put(self, "capacity", None if capacity is None else to_bytes(capacity, f"capacity of {name}"))
        put(self, "slots", None if slots is None else to_count(slots, f"slots of {name}"))
        put(self, "read", to_seconds_per_byte(read, f"read of {name}"))
        put(self, "write", to_seconds_per_byte(write, f"write of {name}"))

    @property
    def free(self) -> bool:
        """Whether keeping and fetching cost no time here."""
        return self.read == 0.0 == self.write

    def __str__(self) -> str:
        cost = "" if self.free else f" (read {bandwidth_text(self.read)}, write {bandwidth_text(self.write)})"
        if self.slots is not None:
            return f"{self.name} {count_text(self.slots)} slot{'s' * (self.slots != 1)}{cost}"
        return f"{self.name} {'no limit' if self.capacity is None else bytes_text(self.capacity)}{cost}"


@dataclass(frozen=True, init=False)
class Memory(Serializable):
    """One level with a capacity in bytes or slots, or several levels, fastest first.

    Args:
        capacity: Bytes of the only level, or text such as "64 MiB".
        slots: The capacity as a number of states, instead of bytes.
        levels: Several levels, the device first.

    Example:
        >>> print(Memory("64 MiB")), print(Memory(slots=31))
        ram 64 MiB
        ram 31 slots
        (None, None)
        >>> print(Memory(levels=[Level("ram", slots=3), Level("disk", read=2, write=2)]))
        ram 3 slots + disk no limit (read 2 s a byte, write 2 s a byte)
    """

    levels: tuple[Level, ...]

    kind: ClassVar[str] = "memory"

    def __init__(
        self,
        capacity: int | str | None = None,
        *,
        slots: int | None = None,
        levels: Iterable[Level] | None = None,
    ) -> None:
        if levels is None:
            if (capacity is None) == (slots is None):
                raise ProblemError("give a memory its capacity in bytes or its slots, one of the two")
            size = None if capacity is None else to_bytes(capacity, "memory")
            levels = [Level("ram", size, slots=None if slots is None else to_count(slots, "slots"))]
        elif capacity is not None or slots is not None:
            raise ProblemError("give a memory one capacity, or levels with theirs, not both")
        object.__setattr__(self, "levels", tuple(levels))
        if not self.levels:
            raise ProblemError("a memory has at least one level")
        names = [level.name for level in self.levels if isinstance(level, Level)]
        if len(names) != len(self.levels):
            raise ProblemError("each level of a memory is a Level(name, capacity)")
        if len(set(names)) != len(names):
            raise ProblemError(f"two levels of a memory have the same name: {', '.join(names)}")

    @classmethod
    def of(cls, memory: Capacity = None, slots: int | None = None) -> "Memory":
        """The memory for a user's `memory=` or `slots=`; raise a ProblemError for both or neither."""
        if isinstance(memory, float):
            raise ProblemError(
                f"memory={memory!r} is a fraction of what is free on a device, and a plan has no device; "
                'give bytes, text like "64 MiB", or a Memory'
            )
        if (memory is None) == (slots is None):
            not_both = ", not both" if slots is not None else ""
            raise ProblemError(
                f'give a budget: memory= (bytes, "64 MiB", a Memory) or slots= (a count of states){not_both}'
            )
        return memory if isinstance(memory, Memory) else cls(memory, slots=slots)

    @property
    def device(self) -> Level:
        """The first level, where tapes and the working state live."""
        return self.levels[0]

    def level(self, name: str) -> Level | None:
        """The level of that name, or None."""
        return next((level for level in self.levels if level.name == name), None)

    def __str__(self) -> str:
        return " + ".join(map(str, self.levels))

    def to_dict(self) -> dict[str, Any]:
        """The memory as plain data."""
        return {"levels": [asdict(level) for level in self.levels]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Memory":
        """The memory from plain data."""
        return cls(levels=[Level(**level) for level in data["levels"]])
