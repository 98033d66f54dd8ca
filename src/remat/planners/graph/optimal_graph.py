"""Plans of whole graphs: which forward operations the backward recomputes, in the least time that fits.

First, minimum cuts find the hull of what to keep at the turn, which bounds the time of any plan, whatever its order.
Starting from points of the hull and from running everything once, plans that fit are made greedily (`relief.py`). Then
CP-SAT, starting from the best of these, searches when single operations are recomputed (`intervals.py`).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from remat.planners.claim import Claim
from remat.planners.graph.exact_choice import has_cp_sat
from remat.planners.graph.graph_planner import GraphPlanner, peak_of, too_little
from remat.planners.graph.intervals import IntervalModel, Solution, last_stages
from remat.planners.graph.keep_choice import Choice, KeepQuestion
from remat.planners.graph.min_cut import hull
from remat.planners.graph.relief import least_possible, relieved
from remat.planners.graph.run_order import just_in_time, plain_runs
from remat.planners.plan import Plan
from remat.problem import Graph, Memory
from remat.units import count_text

__all__ = ["OptimalGraph", "seconds_at_turn"]

TRIED = 24  # points of the hull to look for
STARTS = 4  # points from which plans are made that fit
AIMS = (1.0, 0.85)  # fractions of the budget to aim for: a lower aim leads to other moves, which may end up closer
FEW = 120  # forward × backward operations up to which any number of recomputations is searched: it takes no time
OFTEN = (1, 2, 3)  # how often an operation may be recomputed in larger graphs; the first that is enough is taken
ROUNDING = 1e-7  # more than the relative error of times that solvers count in integers


@dataclass(frozen=True)
class OptimalGraph(GraphPlanner):
    """Recomputes forward operations in the backward, each at most `copies` times, so that the step is fastest.

    The default is once, more often only if nothing else fits, and any number of times in small graphs. `seconds` bounds
    each search of CP-SAT, in `workers` threads (default: all cores, at most 8). The smallest storages, which together
    have less than the fraction `small` of the budget, are held until nothing can need them any more. Without OR-Tools
    the greedy plan is taken, and the claim is what the cut proves.
    """

    copies: int | None = None
    seconds: float = 20.0
    workers: int | None = None
    small: float = 1 / 500

    name: ClassVar[str] = "graph"
    summary: ClassVar[str] = "run single operations of a graph again, with long skips and all, in the least time"

    def plan(self, problem: Graph, memory: Memory) -> Plan:
        """The fastest plan that fits among those that the search found in its time."""
        budget = memory.device.capacity
        if budget is None or problem.plain_peak <= budget:
            plan = self.plan_of(plain_runs(problem), problem, memory, Claim(1.0))
            return plan.because("all fits, and nothing runs again")
        question = KeepQuestion.of(problem)
        points = hull(question, TRIED, budget)
        least = seconds_at_turn(question, points, budget)
        start = _start(problem, points, budget)
        fits = peak_of(problem, start) <= budget
        if not has_cp_sat() or (fits and _factor(_seconds(problem, start), _plain(problem) + least) == 1.0):
            if not fits:
                raise too_little(problem, memory, start, proved=False)
            return self._claimed(problem, memory, Solution(tuple(start), False, least), least, "")
        held = self._held(problem, budget) if fits else frozenset()
        copies = self._tries(problem)[0]
        runs: Sequence[int] = start
        if not fits:
            runs, copies = self._smaller(problem, memory, start)
        model = IntervalModel(problem, copies, held)
        found = model.fastest(budget, self.seconds, self._workers, runs, least)
        if found.runs is None:  # not even the hint was found in time
            found = Solution(tuple(runs), False, least)
        searched = _class(problem, copies, held, model.rounding(budget))
        return self._claimed(problem, memory, found, least, searched)

    @property
    def _workers(self) -> int:
        return self.workers or min(8, os.cpu_count() or 1)

    def _tries(self, graph: Graph) -> tuple[int, ...]:
        """How often operations may be recomputed: the first number that is enough is taken."""
        if self.copies is not None:
            return (self.copies,)
        stages = graph.units - graph.turn
        return (stages,) if len(last_stages(graph)) * stages <= FEW else OFTEN

    def _smaller(self, graph: Graph, memory: Memory, start: Sequence[int]) -> tuple[Sequence[int], int]:
        """Runs that fit, found from runs that do not; raise the error that names the least memory if there are none."""
        budget, bound = memory.device.capacity, least_possible(graph)
        assert budget is not None
        runs, proved = tuple(start), False
        for copies in self._tries(graph):
            if peak_of(graph, runs) == bound:
                break
            model = IntervalModel(graph, copies, frozenset())
            found = model.smallest(max(budget, bound), self.seconds, self._workers, runs)
            proved = found.proved and not model.rounding(peak_of(graph, runs))
            runs = found.runs or runs
            if peak_of(graph, runs) <= budget:
                return runs, copies
        raise too_little(graph, memory, runs, proved)

    def _held(self, graph: Graph, budget: int) -> frozenset[int]:
        """The smallest storages, which together take at most the fraction `small` of the budget."""
        held, left = list[int](), budget * self.small
        for storage in sorted(graph.maker, key=lambda s: graph.storages[s].bytes):
            left -= graph.storages[storage].bytes
            if left < 0:
                break
            held.append(storage)
        return frozenset(held)

    def _claimed(self, graph: Graph, memory: Memory, found: Solution, least: float, searched: str) -> Plan:
        """The plan with its claim: what the cut proves for all schedules, or what the search proves in its class."""
        assert found.runs is not None
        again = [i for i in found.runs[graph.turn :] if i < graph.turn]
        seconds, plain = _seconds(graph, found.runs), _plain(graph)
        by_cut = _factor(seconds, plain + least)
        by_search = 1.0 if found.proved else _factor(seconds, plain + found.bound)
        claim = Claim(by_cut) if by_cut <= by_search else Claim(by_search, searched)
        times = f"{count_text(len(again))} operation{'s' * (len(again) != 1)} run again"
        return self.plan_of(found.runs, graph, memory, claim).because(times)


def _class(graph: Graph, copies: int, held: frozenset[int], rounding: int) -> str:
    """The class of schedules that was searched, as text."""
    often = "once" if copies == 1 else f"{copies} times"
    if copies >= graph.units - graph.turn:
        often = "once before a backward operation"
    small = sum(storage in graph.saved for storage in held)
    kept = f", {count_text(small)} small storages kept" if small else ""
    sizes = f", sizes rounded up to {count_text(rounding)} bytes" if rounding else ""
    where = "" if len(graph.pauses) == graph.units - graph.turn else " where saved tensors are unpacked"
    return f"this order of operations, each run again at most {often}{where}{kept}{sizes}"


def _start(graph: Graph, points: Sequence[Choice], budget: int) -> list[int]:
    """The fastest runs that fit, made from the choices of the minimum cuts; if none fits, the closest ones."""
    starts = [just_in_time(graph, choice.kept) for choice in points]
    # Start from the points nearest to the budget at the turn, and from recomputing nothing, as a framework does.
    near = sorted(range(len(points)), key=lambda i: abs(points[i].bytes - budget))[:STARTS]
    tried = [plain_runs(graph), *(starts[i] for i in near)]
    found = [runs for runs in starts if peak_of(graph, runs) <= budget]

    def cost(runs: list[int]) -> tuple[int, float]:
        return max(peak_of(graph, runs), budget), _seconds(graph, runs)

    for aim in AIMS:
        found += [relieved(graph, runs, int(aim * budget)) for runs in tried]
        best = min(found, key=cost)
        if peak_of(graph, best) <= budget:
            break
    return best


def _seconds(graph: Graph, runs: Sequence[int]) -> float:
    return sum(graph.operations[operation].seconds for operation in runs)


def _plain(graph: Graph) -> float:
    return graph.advance_time(0, graph.units)


def seconds_at_turn(question: KeepQuestion, points: Sequence[Choice], budget: int) -> float:
    """A lower bound on the seconds of recomputation, in any order of operations, with `budget` bytes at the turn.

    What is not live at the turn is recomputed after it, so the schedule is one of the choices, and none is below the
    hull.
    """
    graph = question.graph

    def seconds(choice: Choice) -> float:
        return float(sum(graph.operations[i].seconds for i in choice.remade))

    ordered = sorted(points, key=lambda choice: choice.bytes)
    if budget >= ordered[-1].bytes:
        return seconds(ordered[-1])
    above = next(i for i, choice in enumerate(ordered) if choice.bytes > budget)
    if above == 0:
        return seconds(ordered[0])  # nothing fits: this is the time in the least memory
    low, high = ordered[above - 1], ordered[above]
    share = (budget - low.bytes) / (high.bytes - low.bytes)
    return (1 - share) * seconds(low) + share * seconds(high)


def _factor(seconds: float, bound: float) -> float:
    """The ratio of `seconds` to a bound; 1.0 if it is below 1 or differs from 1 only by rounding."""
    factor = seconds / bound if bound else 1.0
    return 1.0 if factor < 1 + ROUNDING else factor
