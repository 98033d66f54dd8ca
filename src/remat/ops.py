"""The ops: seven for loops and chains, two for graphs.

An op of a loop or a chain addresses a range of units or one state, so that a schedule for a million steps stays short.
A graph has no single state between two operations, so its ops run one operation or free one storage.

`OP_TABLE` defines how ops are written; every encoding (text, columns of a trace, data of a report) reads it. What an op
*means* is decided by a `match` in each module that needs it: the machine, the rules and the simulator's clock.
"""

from dataclasses import dataclass
from typing import Any

__all__ = [
    "OPS_BY_TYPE",
    "OPS_BY_WORD",
    "OP_TABLE",
    "TAPE",
    "Advance",
    "Drop",
    "Fetch",
    "Free",
    "Keep",
    "Op",
    "OpSpec",
    "Pullback",
    "Record",
    "Run",
    "Turn",
]

TAPE = "tape"  # the level in `Fetch(9, "tape")`: the state is taken from the tape of unit 8, not from a kept copy


@dataclass(frozen=True, slots=True)
class Advance:
    """Run units and keep nothing.

    `Advance(3, 9)` is read as: from working state 3, run units 3..8 and keep nothing; working state is now 9.
    """

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Record:
    """Run units and store their tape.

    `Record(9, 12)` is read as: from working state 9, run units 9..11 and store their tape; working state is now 12.
    `Record(9, 10, 2)` records stage 9 of a chain with the third of its options; the default is the first.
    """

    start: int
    stop: int
    option: int = 0

    def __repr__(self) -> str:
        option = f", option={self.option}" if self.option else ""
        return f"Record(start={self.start}, stop={self.stop}{option})"


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
    `Fetch(9, "tape")` is read as: take state 9 from the tape of unit 8, if tapes contain their unit's output.
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


@dataclass(frozen=True, slots=True)
class Run:
    """Run one operation of a graph, for the first time or again.

    `Run(12)` is read as: run operation 12 of the graph; the storages that it makes are live from now on.
    """

    operation: int


@dataclass(frozen=True, slots=True)
class Free:
    """Free one storage of a graph.

    `Free(7)` is read as: free storage 7; if it is needed later, it has to be recomputed.
    """

    storage: int


Op = Advance | Record | Keep | Fetch | Drop | Turn | Pullback | Run | Free


@dataclass(frozen=True)
class OpSpec:
    """How one op is written: its class, its word in text, its code in columns, and its fields in order.

    `optional` names a last field that is written only if it is not 0.
    """

    op: type[Any]
    word: str
    code: int
    fields: tuple[str, ...]
    optional: str | None = None

    @property
    def is_range(self) -> bool:
        """Whether the op addresses the units start..stop-1."""
        return "start" in self.fields

    @property
    def has_level(self) -> bool:
        """Whether the op addresses a state in a level."""
        return "level" in self.fields

    @property
    def of_graphs(self) -> bool:
        """Whether it is an op of graphs, which addresses one operation or one storage."""
        return len(self.fields) == 1


# Saved HTML reports contain the codes (page/data.js), so new ops go at the end.
OP_TABLE: tuple[OpSpec, ...] = (
    OpSpec(Advance, "advance", 0, ("start", "stop")),
    OpSpec(Record, "record", 1, ("start", "stop"), "option"),
    OpSpec(Pullback, "pullback", 2, ("stop", "start")),
    OpSpec(Keep, "keep", 3, ("state", "level")),
    OpSpec(Fetch, "fetch", 4, ("state", "level")),
    OpSpec(Drop, "drop", 5, ("state", "level")),
    OpSpec(Turn, "turn", 6, ()),
    OpSpec(Run, "run", 7, ("operation",)),
    OpSpec(Free, "free", 8, ("storage",)),
)
OPS_BY_TYPE: dict[type, OpSpec] = {spec.op: spec for spec in OP_TABLE}
OPS_BY_WORD: dict[str, OpSpec] = {spec.word: spec for spec in OP_TABLE}
