"""The trade-off curve: how many forward steps and how much time more memory saves."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from remat.errors import InfeasibleError, ProblemError
from remat.planners.loop.keep_all import keep_all_bytes
from remat.planners.plan import Plan
from remat.planners.planner import Planner
from remat.planners.registry import planner_for
from remat.problem import Loop, Memory, Problem, is_problem, kind_names  # noqa: F401 (Loop: the doctest)
from remat.progress import Progress, check_progress
from remat.units import bytes_text, count_text, number_text, seconds_text, to_bytes, to_count

__all__ = ["Curve", "Point", "spread", "sweep"]


@dataclass(frozen=True)
class Point:
    """One budget (bytes or slots) and the costs of the plan for it."""

    budget: int
    forward_steps: int
    seconds: float
    peak: int
    planner: str

    @classmethod
    def of(cls, budget: int, plan: Plan) -> "Point":
        """The costs of a plan at the budget it was made for."""
        return cls(budget, plan.forward_steps, plan.seconds, plan.peak, plan.planner)


@dataclass(frozen=True)
class Curve:
    """Points from little to much memory; prints as a table."""

    problem: Problem
    unit: str
    points: tuple[Point, ...]
    infeasible: tuple[tuple[int, int], ...] = ()  # (budget in which nothing fits, the smallest that works)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __str__(self) -> str:
        time = seconds_text if self.problem.timed else number_text
        shown = bytes_text if self.unit == "bytes" else count_text
        per_unit, units = f"a {self.problem.unit}", max(self.problem.units, 1)
        times = "time" if self.problem.timed else f"{self.problem.unit} times"
        head = f"{self.unit:>12} {f'forward {self.problem.unit}s':>16} {per_unit:>7} {times:>12} {'peak':>12}  planner"
        rows = [
            f"{shown(p.budget):>12} {count_text(p.forward_steps):>16} {p.forward_steps / units:>7.2f} "
            f"{time(p.seconds):>12} {bytes_text(p.peak):>12}  {p.planner}"
            for p in self.points
        ]
        short = [f"{shown(budget):>12} does not fit: {shown(least)} would" for budget, least in self.infeasible]
        return "\n".join([head, *short, *rows])


def sweep(
    problem: Problem,
    memory: Iterable[int | str] | int | str | None = None,
    *,
    slots: Iterable[int] | int | None = None,
    planner: str | Planner[Any] = "auto",
    points: int = 16,
    progress: Progress | None = None,
) -> Curve:
    """Plan for several budgets: the curve from memory to forward steps and time.

    Args:
        problem: What to reverse, as in `plan`.
        memory: Budgets in bytes or as text, one or several. By default, `points` budgets from the least that works to
            one that holds all tapes.
        slots: Budgets as numbers of states, instead of `memory`.
        planner: The planner, as in `plan`.
        points: How many budgets to try if none are given.
        progress: An object with `update(done, total)`, called before each budget is planned.

    Returns:
        A curve that can be printed and iterated. Budgets in which nothing fits are listed separately.

    Raises:
        InfeasibleError: If nothing fits in any of the budgets: the error for the largest.

    Example:
        >>> print(sweep(Loop(1000), slots=[10, 31]))
               slots    forward steps  a step   step times         peak  planner
                  10            4,636    4.64        6,636         14 B  binomial
                  31            3,439    3.44        5,439         35 B  binomial
    """
    if is_problem(memory):
        raise ProblemError(f"the problem comes before its memory: write remat.sweep(problem, memory={problem!r:.40})")
    if not is_problem(problem):
        raise ProblemError(f"a sweep is made for {kind_names()}, not {problem!r:.60}")
    memory = [memory] if isinstance(memory, int | str) else memory
    slots = [slots] if isinstance(slots, int) else slots
    if memory is not None and slots is not None:
        raise ProblemError("give a sweep memory= or slots=, not both")
    chosen = planner_for(problem, planner)
    if slots is not None:
        budgets = sorted({to_count(value, "slots") for value in slots})
    elif memory is not None:
        budgets = sorted({to_bytes(value, "memory") for value in memory})
    else:
        budgets = _spread(problem, chosen, to_count(points, "points", least=2))
    check_progress(progress)
    return _curve(problem, chosen, budgets, "bytes" if slots is None else "slots", progress)


def _curve(problem: Problem, planner: Planner[Any], budgets: list[int], unit: str, progress: Progress | None) -> Curve:
    """The curve through the plans for these budgets."""
    planned: list[Point] = []
    too_small: list[tuple[int, int]] = []
    error: InfeasibleError | None = None
    for done, budget in enumerate(budgets):
        if progress is not None:
            progress.update(done, len(budgets))
        level = Memory(slots=budget) if unit == "slots" else Memory(budget)
        planner.check(problem, level)
        try:
            planned.append(Point.of(budget, planner.plan(problem, level)))
        except InfeasibleError as caught:
            error = caught.with_traceback(None)
            too_small.append((budget, caught.minimum))
    if not planned:
        raise error or ProblemError("a sweep needs at least one budget")
    return Curve(problem, unit, tuple(planned), tuple(too_small))


def spread(least: int, most: int, points: int) -> list[int]:
    """About `points` budgets from the least to the most, at equal ratios."""
    if most <= least:
        return [least]
    ratio = (most / least) ** (1 / (points - 1))
    return sorted({least, most, *(int(least * ratio**i) for i in range(1, points - 1))})


def _spread(problem: Problem, planner: Planner[Any], points: int) -> list[int]:
    """About `points` budgets from the least in which a plan fits to one that holds all tapes."""
    most = max(keep_all_bytes(problem), 1)
    try:
        planner.check(problem, Memory(0))
        planner.plan(problem, Memory(0))
        least = 1
    except InfeasibleError as error:
        least = error.minimum
    return spread(least, most, points)
