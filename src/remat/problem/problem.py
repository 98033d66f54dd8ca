"""What everything else asks of a problem: how many units it has, how large they are, how long they take, what it says.

`Loop` answers by arithmetic, `Chain` by tables; a third kind of problem is one more class with these methods and one
line in `problem_kinds.py`. The memory model of remat is defined by the four `*_size` methods: while a unit runs, its
input and its output are both live; while one is pulled back, so are the cotangents of both; the tape comes on top,
from when it is recorded until it is pulled back.
"""

from typing import Any, ClassVar, Protocol, Self

__all__ = ["Problem", "Sizes"]


class Sizes(Protocol):
    """A sequence of `units` between states 0 and `units`, and how large its states and tapes are."""

    @property
    def units(self) -> int:
        """How many units there are; an unknown length raises a ProblemError."""

    @property
    def restartable(self) -> bool:
        """Whether the tape of a unit contains its output, so that a forward can restart there."""

    def unit_name(self, unit: int) -> str:
        """The user's name for the unit, or an empty text."""

    def state_size(self, state: int) -> int:
        """Bytes of one state."""

    def tape_size(self, start: int, stop: int) -> int:
        """Bytes of the tape of units start..stop-1."""

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """The most bytes of input, output and workspace while units start..stop-1 run (tapes apart)."""

    def pulling_size(self, start: int, stop: int) -> int:
        """The most bytes of cotangents and workspace while units start..stop-1 are pulled back."""


class Problem(Sizes, Protocol):
    """Units with their sizes and their times; a frozen value that describes itself and is saved as JSON."""

    kind: ClassVar[str]  # names the problem in files and errors: "loop"
    unit: ClassVar[str]  # names one unit where costs are printed: "step"

    @property
    def timed(self) -> bool:
        """Whether times were given, in seconds; else the forward of a unit counts 1 and its backward 2."""

    @property
    def title(self) -> str:
        """How many units there are, in words: "1,000 steps"."""

    def describe(self, *, times: bool = False) -> list[tuple[str, str]]:
        """Rows of a name and a text about the units' sizes, and with `times` about their times, to be printed."""

    def shrink_advice(self) -> str:
        """What to make smaller so that the problem fits less memory, to end the sentence "Give more memory, or …"."""

    def envelope(self) -> dict[str, Any]:
        """The problem as plain data, with its kind and version."""

    @classmethod
    def from_envelope(cls, data: Any) -> Self:
        """The problem from such data; anything else raises a FileError."""

    def advance_time(self, start: int, stop: int) -> float:
        """Seconds to run units start..stop-1 without tape."""

    def record_time(self, start: int, stop: int, option: int = 0) -> float:
        """Seconds to run units start..stop-1 and store their tape, as one range."""

    def pullback_time(self, start: int, stop: int, option: int = 0) -> float:
        """Seconds to pull a cotangent back through units start..stop-1, recorded by that option of theirs."""
