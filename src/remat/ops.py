"""The seven ops. Each addresses a range of units or one state, so that a million-step loop stays short."""

from dataclasses import dataclass

__all__ = ["TAPE", "Advance", "Drop", "Fetch", "Keep", "Op", "Pullback", "Record", "Turn"]

TAPE = "tape"  # the level name in `Fetch(9, "tape")`: the state is taken from a held tape


@dataclass(frozen=True, slots=True)
class Advance:
    """Run units and keep nothing.

    `Advance(3, 9)` is read as: from working state 3, run units 3..8 and keep nothing; working state is now 9.
    """

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Record:
    """Run units and hold their tape.

    `Record(9, 12)` is read as: from working state 9, run units 9..11 and hold their tape; working state is now 12.
    """

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep the working state.

    `Keep(9, "ram")` is read as: put the working state 9 into ram.
    """

    state: int
    level: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Go back to a kept state.

    `Fetch(9, "ram")` is read as: make the state 9 kept in ram the working state again; it stays kept.
    `Fetch(9, "tape")` is read as: take state 9 from the held tape of unit 8, where tapes hold their unit's output.
    """

    state: int
    level: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a kept state.

    `Drop(9, "ram")` is read as: forget the state 9 kept in ram.
    """

    state: int
    level: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Go from the forward to the reverse sweep.

    `Turn()` is read as: the result is out and its cotangent is in; the reverse sweep starts.
    """


@dataclass(frozen=True, slots=True)
class Pullback:
    """Pull the cotangent back through a tape.

    `Pullback(12, 9)` is read as: pull the cotangent of state 12 back to state 9 through the tape of exactly
    `Record(9, 12)`, and free that tape.
    """

    stop: int
    start: int


Op = Advance | Record | Keep | Fetch | Drop | Turn | Pullback
