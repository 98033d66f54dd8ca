"""The bytes that a level leaves for stored states and tapes, for planners of one level.

While a step runs after the turn, its input, its output and one cotangent are live, and its tape when it is recorded.
No plan can avoid these 3 states and 1 tape, the *working set*. Before the turn there is no cotangent, so the first
sweep may store one more state (`early`). A budget in slots excludes the working set, before and after the turn.

This is for loops only: if units are unequal, the working set depends on the running unit and is not a constant.
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
        """What `level` leaves after the working set is subtracted."""
        if level.slots is not None:
            return cls(level.slots * loop.state, 0)
        everything = loop.units * (loop.tape + loop.state)
        if level.capacity is None:
            return cls(everything, 0)
        working_set = 3 * loop.state + loop.tape
        return cls(min(level.capacity - working_set, everything), loop.state)
