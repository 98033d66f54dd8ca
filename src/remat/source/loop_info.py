"""What is known about a loop before it runs: found by data flow, used by the run time and `explain()`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LoopInfo"]


@dataclass(frozen=True)
class LoopInfo:
    """One loop of a decorated function.

    carry = written ∩ (exposed ∪ (live − surely written)); captured = exposed − written; locals = the rest of written.
    If the last turn runs in place, a name that every turn assigns need not be carried. A `while` loop does not know its
    last turn, so it carries such names.
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
    arrays: tuple[str, ...] = ()  # outputs: arrays and dicts that are filled row by row
    held: tuple[tuple[str, str, bool], ...] = ()  # (name, *`holds` of `put`), for `arrays` that may be lists or dicts
    last_in_place: bool = False
    ends: frozenset[str] = frozenset()  # how the body may end the loop: "break", "return", "an exception"
    unbound: frozenset[str] = frozenset()  # carried or captured names that may have no value when the loop begins
    put: frozenset[str] = frozenset()  # carried names whose items are assigned
    # Those of `put` with `x[i] += …`, which in a list or dict changes the item itself: the constant i, None for any.
    items: frozenset[tuple[str, Any]] = frozenset()
    changed: Mapping[str, int] = field(default_factory=dict)  # these, `arrays` and carried names with `+=`: the line
    augmented: tuple[tuple[str, str, int], ...] = ()  # (name, other, line): `name += …` where both may be one object
    readable: tuple[str, ...] = ()  # names that the loop or what follows it may read
    own_items: frozenset[str] = frozenset()  # iterated objects of which a turn assigns only its own item
    shares_iterator: bool = False  # whether the body may take items from the loop's own iterator
    traceable: bool = True  # whether its variable may be traced (traceability.py)
    reads_variable: bool = True  # whether its body reads the variable of the loop
    scaled: frozenset[str] = frozenset()  # names that it multiplies: Python integers grow, those of arrays overflow
    depth: int = 0
    merged: str = ""  # what was merged into this loop, if it was a perfect nest
    inner: tuple[int, ...] = ()  # the lines of loops inside it
    contexts: tuple[str, ...] = ()  # `with` statements around it, which are not open in the backward
    emits: bool = False  # whether it prints or logs
    kept: str = ""  # with on_unsupported="keep": why it is left unchanged

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}, line {self.line}"
