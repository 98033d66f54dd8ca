"""What a memory means to a planner of one level: the bytes that are left for stored states and tapes.

While a step runs after the turn, its input, its output and one cotangent are live, and the tape when it is recorded:
3 states and 1 tape that no plan can avoid, the *working set*. Before the turn there is no cotangent yet, so the first
sweep may store one state more (`early`). A budget in slots leaves the working set out on both sides of the turn.

This is for loops: where units are unequal, the working set depends on the unit that runs, and is no constant to
subtract.
"""

from dataclasses import dataclass

from remat.problem import Level, Loop

__all__ = ["HeldBudget"]


@dataclass(frozen=True)
class HeldBudget:
    """Bytes for kept states and stored tapes: `size` after the turn, `size + early` before it. May be negative."""

    size: int
    early: int

    @classmethod
    def of(cls, loop: Loop, level: Level) -> "HeldBudget":
        """The budget that `level` leaves when the working set is subtracted."""
        if level.slots is not None:
            return cls(level.slots * loop.state, 0)
        everything = loop.units * (loop.tape + loop.state)
        if level.capacity is None:
            return cls(everything, 0)
        working_set = 3 * loop.state + loop.tape
        return cls(min(level.capacity - working_set, everything), loop.state)
