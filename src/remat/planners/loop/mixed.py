"""Mixed: states or tapes in one level, for any sizes, with the least recomputation that a budget allows.

Small problems use the exact table, long ones the search guided by the layer bound; the claim says which, and how far
from the bound. The times of forward, record and backward do not change which schedule is best: every step is recorded
and pulled back exactly once, so the time is a constant plus the number of advances times the time of one. A cost per
range is not minimised.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from remat.errors import InfeasibleError
from remat.planners.bounds import MANY_LAYERS, states_or_tapes
from remat.planners.claim import Claim, Prediction
from remat.planners.dp.budget_grid import MOST_EXACT, on_grid, reachable_budgets
from remat.planners.dp.exact_table import ExactTable
from remat.planners.dp.layer_bound import LayerBound
from remat.planners.dp.states_or_tapes import SubproblemSizes
from remat.planners.loop.binomial import Binomial
from remat.planners.loop.chunks import Chunks
from remat.planners.loop.keep_all import KeepAll, least_for_all
from remat.planners.loop.mixed_ops import mixed_ops
from remat.planners.plan import Plan
from remat.planners.planner import OneLevelPlanner, infeasible
from remat.planners.working_set import HeldBudget
from remat.problem import Level, Loop, Memory
from remat.schedule import Schedule

__all__ = ["Mixed"]


@dataclass(frozen=True)
class Mixed(OneLevelPlanner):
    """Spends a budget on states, tapes or both, whichever gives the fewest forward steps.

    The exact table is used up to `most` additions (a billion take about a second), the guided search beyond; `most=0`
    forces the search, `most=inf` the table. About `fine` different budgets are distinguished; with fewer, planning
    takes less memory.
    """

    most: float = 2.5e9
    fine: int = MOST_EXACT

    name: ClassVar[str] = "mixed"
    summary: ClassVar[str] = "states or tapes, whichever saves more; exact for small problems, near the bound for long"

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan with the fewest forward steps that the table or the search finds."""
        level = memory.device
        try:
            return KeepAll().plan(problem, memory).named(self.name)
        except InfeasibleError:
            _check_memory(problem, level)
        budget = HeldBudget.of(problem, level)
        sizes = SubproblemSizes(problem.state, problem.tape, problem.restartable, budget.early)
        budgets = reachable_budgets(sizes, budget.size, self.fine)
        if budgets is not None and 2 * problem.units**2 * len(budgets) * (1 + bool(budget.early)) <= self.most:
            table = ExactTable(sizes, problem.units, budgets)
            ops = mixed_ops(table, problem.units, budget.size, level.name)
            return Plan(
                problem, memory, self.name, Claim(1.0, _class(problem)), ops.predict(problem, memory), Schedule(ops)
            )
        return _guided(problem, memory, sizes, budget.size, self.fine)


def _guided(loop: Loop, memory: Memory, sizes: SubproblemSizes, top: int, fine: int) -> Plan:
    """The best plan of the guided search, binomial and chunks; its claim is the factor over the bound."""
    level, bound = memory.device, states_or_tapes(loop, memory.device, fine)
    candidates: list[tuple[Prediction, Schedule]] = []
    # In slots, the tape of a range that is pulled back at once does not count, so chunks are of another class there.
    for planner in (Binomial(), Chunks()) if level.slots is None else (Binomial(),):
        with suppress(InfeasibleError):
            plan = planner.plan(loop, memory)
            candidates.append((plan.predicted, plan.schedule))
    grid = on_grid(sizes, top, up=True, fine=fine) if bound <= MANY_LAYERS * loop.units else None
    if grid is not None:
        layers = LayerBound(*grid, loop.units)
        if layers.feasible:
            ops = mixed_ops(layers, loop.units, grid[1], level.name)
            candidates.append((ops.predict(loop, memory), Schedule(ops)))
    prediction, schedule = min(candidates, key=lambda pair: pair[0].advances)
    factor = (prediction.advances + prediction.records) / bound
    assert factor >= 1.0, f"a plan of {prediction} is below its bound of {bound}"
    return Plan(loop, memory, Mixed.name, Claim(factor, _class(loop)), prediction, schedule)


def _class(loop: Loop) -> str:
    """The class of the claim: in a persistent schedule, what is kept stays until its own part is reversed.

    With a cost per range, the fewest forward steps need not be fastest, so the class says that steps are counted.
    """
    return "persistent states and tapes" + (", counting forward steps" if loop.per_range else "")


def _check_memory(loop: Loop, level: Level) -> None:
    """Raise an InfeasibleError unless some schedule fits.

    With no kept state, all tapes are live at the turn, with a step's input and output: n·τ+2σ bytes. If the initial
    state is kept only up to the turn, half of the tapes are stored before the turn and half after it: ⌈n/2⌉·τ+3σ. If it
    is kept longer, one tape is enough: τ+4σ. The least memory is the smallest of the three.
    """
    n, state, tape = loop.units, loop.state, loop.tape
    if level.slots is not None:
        least, have = min(least_for_all(loop, level), 1), level.slots
        why = "the initial state is kept"
    else:
        least = least_for_all(loop, level)
        if n > 1:
            least = min(least, -(-n // 2) * tape + 3 * state, tape + 4 * state)
        have = least if level.capacity is None else level.capacity
        why = "a step's input, output, cotangent and tape, beside the initial state"
    if have < least:
        raise infeasible(loop, level, least, why)
