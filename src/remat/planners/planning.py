"""`plan`: plan a problem in a memory with the planner of the caller's choice."""

from typing import Any

from remat.errors import ProblemError
from remat.planners.plan import Plan
from remat.planners.planner import Planner
from remat.planners.registry import planner_for
from remat.problem import Memory, Problem, is_problem, kind_names
from remat.problem.memory import Capacity
from remat.progress import Progress, check_progress, reporting_to

__all__ = ["plan"]


def plan(
    problem: Problem,
    memory: Capacity = None,
    *,
    slots: int | None = None,
    planner: str | Planner[Any] = "auto",
    progress: Progress | None = None,
) -> Plan:
    """Plan how to reverse `problem` within `memory` or `slots`.

    Args:
        problem: What to reverse: a `Loop`, a `Chain` or a `Graph`.
        memory: The budget for the peak: bytes, text such as "64 MiB", or a `Memory` with its levels.
        slots: The budget as a number of states, instead of `memory`.
        planner: The name of a planner, or a planner with its own options; "auto" chooses one and says why.
        progress: An object with `update(done, total)`, which is called during a long search.

    Returns:
        A plan that can be printed, iterated, verified, simulated, saved and reported.

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
        if is_problem(memory):
            raise ProblemError(
                f"the problem comes before its memory: write remat.plan(problem, memory={problem!r:.40})"
            )
        raise ProblemError(
            f"a plan is made for {kind_names()}, not {problem!r:.60}; did you mean Loop({problem!r:.20})?"
        )
    chosen = planner_for(problem, planner)
    budget = Memory.of(memory, slots)
    chosen.check(problem, budget)
    check_progress(progress)
    with reporting_to(progress):
        return chosen.plan(problem, budget)
