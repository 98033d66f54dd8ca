"""What a planner is: frozen configuration that says what it takes, and plans it.

In: a problem and a memory. Out: a `Plan`, or an InfeasibleError with the smallest memory that works. To add one, write
a file in `loop/` (or `chain/`, `graph/`) with a final class like this one, and a line in `table.py`.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from remat.errors import InfeasibleError, PlannerError
from remat.planners.plan import Plan
from remat.problem import Level, Loop, Memory, Problem
from remat.units import bytes_text, count_text

__all__ = ["LoopPlanner", "Planner", "infeasible", "wants_known_loop", "wants_loop"]


class Planner(ABC):
    """Decides what is kept, dropped and recomputed. Final classes are frozen dataclasses."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def accepts(self, problem: Problem, memory: Memory) -> str | None:
        """None if this planner can plan the problem in the memory, else the reason why not."""

    @abstractmethod
    def plan(self, problem: Problem, memory: Memory) -> Plan:
        """The plan; the problem and memory must be ones that it accepts."""

    def check(self, problem: Problem, memory: Memory) -> None:
        """Raise a PlannerError unless the problem and memory are accepted."""
        reason = self.accepts(problem, memory)
        if reason is not None:
            raise PlannerError(f"the {self.name} planner does not take this: {reason}")


class LoopPlanner(Planner):
    """A planner for loops of known length in one level whose states move at no cost."""

    def accepts(self, problem: Problem, memory: Memory) -> str | None:
        """None if the problem is a loop of known length and the memory is one free level."""
        reason = wants_known_loop(problem)
        if reason is not None:
            return reason
        if len(memory.levels) > 1:
            return f"it plans one level, and the memory has {len(memory.levels)}; the levels planner takes several"
        if not memory.device.free:
            return "it knows no read and write costs; the levels planner weighs them"
        return None


def wants_loop(problem: Problem) -> str | None:
    """The reason to refuse what is no loop."""
    return None if isinstance(problem, Loop) else f"it plans loops, and this is a {type(problem).__name__.lower()}"


def wants_known_loop(problem: Problem) -> str | None:
    """The reason to refuse what is no loop of known length."""
    if isinstance(problem, Loop) and problem.steps is None:
        return "the loop's length is not known (steps=None); the online planner takes it"
    return wants_loop(problem)


def infeasible(loop: Loop, level: Level, minimum: int, why: str) -> InfeasibleError:
    """The error for a level that is too small: `minimum` is in slots if the level is, else in bytes."""
    if level.slots is not None:
        least = f"{count_text(minimum)} slot{'s' * (minimum != 1)}"
        return InfeasibleError(
            f"no plan fits {level}: the smallest that works is {least} ({why}). Give at least that",
            minimum,
            "slots",
        )
    least = bytes_text(minimum, up=True)
    exact = f"{least}, {count_text(minimum)} bytes" if minimum >= 1024 else least
    return InfeasibleError(
        f"no plan fits {level}: the smallest that works is {exact} ({why}). Give at least that, "
        f"or make a step's tape ({bytes_text(loop.tape)}) or state ({bytes_text(loop.state)}) smaller",
        minimum,
        "bytes",
    )
