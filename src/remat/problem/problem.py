"""The interface of a problem: how many units it has, how large they are, how long they take, and how it is described.

`Loop` answers by arithmetic, `Chain` and `Graph` by tables; a new kind of problem is a class with these methods and a
line in `problem_kinds.py`. The four `*_size` methods define remat's memory model: while a unit runs, its input and its
output are both live; while it is pulled back, so are the cotangents of both; in addition its tape is live from when it
is recorded until it is pulled back.
"""

from typing import Any, ClassVar, Protocol, Self

__all__ = ["Problem", "Sizes"]


class Sizes(Protocol):
    """A sequence of `units` units between states 0 and `units`, with the sizes of its states and tapes."""

    @property
    def units(self) -> int:
        """The number of units; raise a ProblemError if it is unknown."""

    @property
    def restartable(self) -> bool:
        """Whether the tape of a unit contains its output, so that a forward can restart from the tape."""

    def unit_name(self, unit: int) -> str:
        """The user's name for the unit, or an empty string."""

    def state_size(self, state: int) -> int:
        """Bytes of one state."""

    def tape_size(self, start: int, stop: int) -> int:
        """Bytes of the tape of units start..stop-1."""

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """The most bytes of input, output and workspace, without tapes, while units start..stop-1 run."""

    def pulling_size(self, start: int, stop: int) -> int:
        """The most bytes of cotangents and workspace while units start..stop-1 are pulled back."""


class Problem(Sizes, Protocol):
    """Units with their sizes and times: a frozen value that describes itself and can be saved as JSON."""

    kind: ClassVar[str]  # the name of the kind in files and errors: "loop"
    unit: ClassVar[str]  # the name of one unit in printed costs: "step"

    @property
    def timed(self) -> bool:
        """Whether times were given, in seconds; if not, the forward of a unit counts 1 and its backward 2."""

    @property
    def title(self) -> str:
        """The number of units as text: "1,000 steps"."""

    def describe(self, *, times: bool = False) -> list[tuple[str, str]]:
        """Rows (name, text) to print about the units' sizes and, with `times`, their times."""

    def shrink_advice(self) -> str:
        """What to make smaller so that the problem fits less memory; it completes "Give more memory, or …"."""

    def envelope(self) -> dict[str, Any]:
        """The problem as plain data, with its kind and version."""

    @classmethod
    def from_envelope(cls, data: Any) -> Self:
        """The problem from the data of `envelope`; raise a FileError for anything else."""

    def advance_time(self, start: int, stop: int) -> float:
        """Seconds to run units start..stop-1 without a tape."""

    def record_time(self, start: int, stop: int, option: int = 0) -> float:
        """Seconds to run units start..stop-1 and store their tape, as one range."""

    def pullback_time(self, start: int, stop: int, option: int = 0) -> float:
        """Seconds to pull a cotangent back through units start..stop-1, recorded with that option."""
