"""The result of a run of turns, as it is passed to the run time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Ran", "Step"]

Step: TypeAlias = Callable[[Any, Any], Any]


class Ran(NamedTuple):
    """The result of a run of turns."""

    values: Sequence[Any] | None  # of the carried names; None if no turn was run
    turns: int
    rows: Sequence[Callable[[int], Any]]  # for each output list: the item that each turn appends
    filled: Sequence[Any]  # for each output array: its new rows, stacked
    why: str  # why the next turn must run in place; "" if it need not
    over: bool = False  # whether a `while` has ended, so that its test need not be evaluated
