"""What a planner is: frozen configuration that says which problems and memories it takes, and plans them.

`plan` returns a `Plan`, or raises an InfeasibleError with the smallest memory that works. To add a planner, write a
file in `loop/` (or the folder for another kind of problem) with one final class, and add a line to `registry.py`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from remat.errors import InfeasibleError, PlannerError
from remat.planners.plan import Plan
from remat.problem import Level, Loop, Memory, Problem
from remat.units import bytes_text, count_text

__all__ = ["UNKNOWN_LENGTH", "OneLevelPlanner", "Planner", "infeasible"]

P = TypeVar("P", bound=Problem)

UNKNOWN_LENGTH = "the loop's length is not known (steps=None); the online planner takes it"


class Planner(ABC, Generic[P]):
    """Decides what is kept, dropped and recomputed. Final classes are frozen dataclasses.

    `problem_type` is the class of problems that it plans, and equals its type parameter.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    problem_type: ClassVar[type[Any]]

    def accepts(self, problem: Problem, memory: Memory) -> str | None:
        """None if this planner can plan the problem in the memory; otherwise the reason why not."""
        if not isinstance(problem, self.problem_type):
            return f"it plans {self.problem_type.kind}s, and this is a {type(problem).__name__.lower()}"
        return self.refuses(problem, memory)

    def refuses(self, problem: P, memory: Memory) -> str | None:
        """The reason why a problem of the right type cannot be planned in the memory; None by default."""
        return None

    @abstractmethod
    def plan(self, problem: P, memory: Memory) -> Plan:
        """The plan for a problem and memory that this planner accepts."""

    def check(self, problem: Problem, memory: Memory) -> None:
        """Raise a PlannerError unless the problem and memory are accepted."""
        reason = self.accepts(problem, memory)
        if reason is not None:
            raise PlannerError(f"the {self.name} planner does not take this: {reason}")


class OneLevelPlanner(Planner[Loop]):
    """A planner for loops of known length in one level without read and write costs."""

    problem_type: ClassVar[type[Loop]] = Loop

    def refuses(self, problem: Loop, memory: Memory) -> str | None:
        """The reason to refuse, unless the length is known and the memory is one level without costs."""
        if problem.steps is None:
            return UNKNOWN_LENGTH
        if len(memory.levels) > 1:
            return f"it plans one level, and the memory has {len(memory.levels)}; the levels planner takes several"
        if not memory.device.free:
            return "it knows no read and write costs; the levels planner weighs them"
        return None


def infeasible(problem: Problem, level: Level, minimum: int, why: str) -> InfeasibleError:
    """The error for a level that is too small; `minimum` is in slots if the level's capacity is, otherwise in bytes."""
    if level.slots is not None:
        least = f"{count_text(minimum)} slot{'s' * (minimum != 1)}"
        return InfeasibleError(
            f"no plan fits {level}: the smallest that works is {least} ({why}). Give at least that",
            minimum,
            "slots",
            why,
        )
    least = bytes_text(minimum, up=True)
    exact = f"{least}, {count_text(minimum)} bytes" if minimum >= 1024 else least
    advice = problem.shrink_advice()
    return InfeasibleError(
        f"no plan fits {level}: the smallest that works is {exact} ({why}). Give at least that, or {advice}",
        minimum,
        "bytes",
        why,
        advice,
    )
