"""What a memory means to a planner of one level: bytes for kept states and held tapes, beside the working set.

While a step runs after the turn, its input, its output and one cotangent are live, and the tape when it is recorded:
3 states and 1 tape that no plan can avoid, the *working set*. Before the turn there is no cotangent yet, so the first
sweep may hold one state more (`early`). A budget in slots leaves the working set out on both sides of the turn.
"""

from dataclasses import dataclass

from remat.problem import Level, Loop

__all__ = ["HeldBudget"]


@dataclass(frozen=True)
class HeldBudget:
    """Bytes for what is kept and held: `held` after the turn, `held + early` before it. May be negative."""

    held: int
    early: int

    @classmethod
    def of(cls, loop: Loop, level: Level) -> "HeldBudget":
        """The budget that `level` leaves beside the working set."""
        if level.slots is not None:
            return cls(level.slots * loop.state, 0)
        everything = loop.units * (loop.tape + loop.state)
        if level.capacity is None:
            return cls(everything, 0)
        working_set = 3 * loop.state + loop.tape
        return cls(min(level.capacity - working_set, everything), loop.state)
