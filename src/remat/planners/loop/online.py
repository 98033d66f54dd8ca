"""Online: for loops of unknown length. The plan has a driver, which decides step by step while the loop runs."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from remat.errors import PlannerError
from remat.planners.claim import Claim
from remat.planners.loop.online_driver import Driver
from remat.planners.plan import Plan
from remat.planners.planner import Planner, infeasible
from remat.problem import Level, Loop, Memory

__all__ = ["Online"]

MOST_KNOWN = 1_000_000  # the most steps of known length to plan step by step


@dataclass(frozen=True)
class Online(Planner[Loop]):
    """Keeps states so that the loop may end at any step. A known length is planned as if it were unknown."""

    name: ClassVar[str] = "online"
    summary: ClassVar[str] = "length not known: states kept as the loop runs, then an optimal reversal of those held"
    problem_type: ClassVar[type[Loop]] = Loop

    def refuses(self, problem: Loop, memory: Memory) -> str | None:
        """The reason to refuse, unless the memory is one level without costs and the length is unknown or short."""
        if len(memory.levels) > 1 or not memory.device.free:
            return "it plans one level without read and write costs"
        if problem.steps is not None and problem.steps > MOST_KNOWN:
            return f"it goes step by step, and {problem.steps} steps are known: the binomial planner takes them at once"
        return None

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """A plan with a driver; if the length is known, the finished plan that the driver arrives at."""
        slots = _slots(problem, memory.device)
        start = partial(Driver, problem, memory, slots, self.name)
        if problem.steps is None:
            return Plan(problem, memory, self.name, Claim(None), None, starter=start)
        driver = start()
        for _ in range(problem.steps - 1):
            driver.advance()
        if problem.steps:
            driver.last()
        else:
            driver.ended()
        return driver.plan()


def _slots(loop: Loop, level: Level) -> int:
    """The number of states that fit next to the working set; a loop of unknown length needs at least one."""
    if level.slots is not None:
        if level.slots < 1 and (loop.steps is None or loop.steps > 1):
            raise infeasible(loop, level, 1, "the initial state is kept")
        return level.slots
    if level.capacity is None:
        raise PlannerError("the online planner needs a limit: give the level a capacity or slots")
    slots = (level.capacity - loop.tape) // loop.state - 3
    if slots < 1:
        raise infeasible(loop, level, 4 * loop.state + loop.tape, "a working set of 4 states and a tape")
    return slots
