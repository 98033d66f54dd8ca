"""What the verifier and the simulator ask of any problem: how many units, how large, how long.

`Loop` answers by arithmetic, `Chain` by tables. The memory model of remat is defined by the four `*_size`
methods: while a unit runs, its input and its output are both live; while one is pulled back, so are the
cotangents of both; the tape comes on top, once it is recorded and until it is pulled back.
"""

from typing import Protocol

__all__ = ["Problem", "Sizes"]


class Sizes(Protocol):
    """A sequence of `units` between states 0 and `units`, and how large its states and tapes are."""

    @property
    def units(self) -> int:
        """How many units there are; an unknown length raises a ProblemError."""

    @property
    def restartable(self) -> bool:
        """Whether the tape of a unit also holds its output, so that a forward can restart there."""

    def unit_name(self, unit: int) -> str:
        """What the user calls the unit, or nothing."""

    def state_size(self, state: int) -> int:
        """Bytes of one state."""

    def tape_size(self, start: int, stop: int) -> int:
        """Bytes of the tape of units start..stop-1."""

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """The most bytes of input, output and workspace while units start..stop-1 run (tapes apart)."""

    def pulling_size(self, start: int, stop: int) -> int:
        """The most bytes of cotangents and workspace while units start..stop-1 are pulled back."""


class Problem(Sizes, Protocol):
    """Units with their sizes and their times."""

    def advance_time(self, start: int, stop: int) -> float:
        """Seconds to run units start..stop-1 without tape."""

    def record_time(self, start: int, stop: int) -> float:
        """Seconds to run units start..stop-1 and hold their tape, as one range."""

    def pullback_time(self, start: int, stop: int) -> float:
        """Seconds to pull a cotangent back through units start..stop-1."""
