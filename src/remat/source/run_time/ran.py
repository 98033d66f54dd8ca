"""The result of a run of turns, as it is passed to the run time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

__all__ = ["ENDS", "OutputRows", "Ran", "Step"]

ENDS = "it ends the loop"  # why a turn must run in place

Step: TypeAlias = Callable[[Any, Any], Any]


class OutputRows(NamedTuple):
    """What the turns gave to one list, array or dict."""

    item: Callable[[int], Any]  # from a turn to what it gave
    stacked: Callable[[], Any]  # all of it, for an array: a stacked array, or a list of numbers


class Ran(NamedTuple):
    """The result of a run of turns."""

    values: Sequence[Any] | None  # of the carried names; None if no turn was run
    turns: int
    rows: Sequence[OutputRows]  # what the turns gave to each output: to lists first, then to what is filled
    why: str  # why the next turn must run in place; "" if it need not
    over: bool = False  # whether a `while` has ended, so that its test need not be evaluated
