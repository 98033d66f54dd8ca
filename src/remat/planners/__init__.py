"""WHO DECIDES: planners, each one file, and the plans they make.

In: a `Problem` and a `Memory`. Out: a `Plan`: a schedule, the claim that is proved of it, and its predicted cost.
`loop/` has one file for each planner of loops, `registry.py` one line for each; `dp/` has their recurrences.
"""

from typing import Any

from remat.errors import ProblemError
from remat.planners.auto import Auto
from remat.planners.claim import Claim, Prediction
from remat.planners.exhaustive import Exhaustive
from remat.planners.loop.binomial import Binomial
from remat.planners.loop.chunks import Chunks
from remat.planners.loop.keep_all import KeepAll
from remat.planners.loop.levels import Levels
from remat.planners.loop.mixed import Mixed
from remat.planners.loop.online import Online
from remat.planners.loop.online_driver import Driver
from remat.planners.loop.save_points import SavePoints, save_points
from remat.planners.plan import Plan
from remat.planners.planner import Planner
from remat.planners.registry import PLANNERS, find_planner, planner_for
from remat.planners.sweeping import Curve, Point, sweep
from remat.problem import Memory, Problem, is_problem, kind_names
from remat.problem.memory import Capacity
from remat.progress import Progress, check_progress, reporting_to

__all__ = [
    "PLANNERS",
    "Auto",
    "Binomial",
    "Chunks",
    "Claim",
    "Curve",
    "Driver",
    "Exhaustive",
    "KeepAll",
    "Levels",
    "Mixed",
    "Online",
    "Plan",
    "Planner",
    "Point",
    "Prediction",
    "SavePoints",
    "find_planner",
    "plan",
    "save_points",
    "sweep",
]


def plan(
    problem: Problem,
    memory: Capacity = None,
    *,
    slots: int | None = None,
    planner: str | Planner[Any] = "auto",
    progress: Progress | None = None,
) -> Plan:
    """The plan that reverses `problem` inside `memory` (bytes, text, a `Memory`) or `slots` (a count of states).

    Args:
        problem: What is reversed: a `Loop`, a `Chain` or a `Graph`.
        memory: The budget for the peak: bytes, text such as "64 MiB", or a `Memory` with its levels.
        slots: The budget as a count of states, instead of `memory`.
        planner: The name of a planner, or one with options of its own; "auto" chooses, and says why.
        progress: An object with `update(done, total)`, which is called while a long search goes on.

    Returns:
        A plan that is printed, iterated, verified, simulated, saved and reported.

    Raises:
        InfeasibleError: If nothing fits; it carries the smallest memory that works.

    Example:
        >>> from remat import Loop
        >>> plan(Loop(1000), slots=31).forward_steps
        3439
        >>> plan(Loop(1000), slots=31, planner="mixed").forward_steps
        2488
    """
    if not is_problem(problem):
        raise ProblemError(
            f"a plan is made for {kind_names()}, not {problem!r:.60}; did you mean Loop({problem!r:.20})?"
        )
    chosen = planner_for(problem, planner)
    budget = Memory.of(memory, slots)
    chosen.check(problem, budget)
    check_progress(progress)
    with reporting_to(progress):
        return chosen.plan(problem, budget)
