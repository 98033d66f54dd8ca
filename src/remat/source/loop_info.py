"""What is known of a loop before it runs: the result of the data flow, and what the run time and `explain()` need."""

from dataclasses import dataclass

__all__ = ["LoopInfo"]


@dataclass(frozen=True)
class LoopInfo:
    """One loop of a decorated function.

    carry = written ∩ (exposed ∪ (live − surely written)); captured = exposed − written; locals = the rest of written.
    With the last turn in place a name that every turn assigns needs no place in the carry. A `while` does not know its
    last turn, so there such names are carried.
    """

    number: int
    kind: str  # "for" or "while"
    file: str
    function: str
    line: int
    column: int
    code: str  # the first line of the loop
    carry: tuple[str, ...]
    captured: tuple[str, ...]
    locals: tuple[str, ...]
    lists: tuple[str, ...] = ()  # outputs: lists that are appended to
    arrays: tuple[str, ...] = ()  # outputs: arrays that are filled by row
    last_in_place: bool = False
    ends: frozenset[str] = frozenset()  # how the body may end the loop: "break", "return", "an exception"
    unbound: frozenset[str] = frozenset()  # carried or captured names that may have no value when the loop begins
    put: frozenset[str] = frozenset()  # carried names whose items are assigned
    changed: frozenset[str] = frozenset()  # these, and carried names with `+=`
    augmented: tuple[tuple[str, str, int], ...] = ()  # (name, other name, line): `name += …` while both may be one
    shares_iterator: bool = False  # whether the body may take items from the iterator of the loop itself
    traceable: bool = True  # whether its variable may be traced (traceability.py)
    hands_on: bool = False  # whether functions of the user's get its variable
    scaled: frozenset[str] = frozenset()  # names that it multiplies: Python's integers grow, those of arrays overflow
    depth: int = 0
    merged: str = ""  # what was merged into this loop, if it was a perfect nest
    inner: tuple[int, ...] = ()  # the lines of loops inside of it
    contexts: tuple[str, ...] = ()  # `with` blocks around it, which are not open in the backward
    emits: bool = False  # whether it prints or logs
    kept: str = ""  # with on_unsupported="keep": why it is left as it is

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}, line {self.line}"
