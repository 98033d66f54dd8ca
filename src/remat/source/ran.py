"""What a run of turns has given: the value that the run time and those who run turns share."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Ran", "Step"]

Step: TypeAlias = Callable[[Any, Any], Any]


class Ran(NamedTuple):
    """What a run of turns has given."""

    values: Sequence[Any] | None  # of the carried names; None if no turn was run
    turns: int
    rows: Sequence[Callable[[int], Any]]  # by list that is appended to: what each turn gives it
    filled: Sequence[Any]  # by array that is filled: its new rows, stacked
    why: str  # why the next turn is to run in place; "" if there is no need
