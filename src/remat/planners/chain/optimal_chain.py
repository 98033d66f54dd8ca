"""The best persistent schedule of a chain: from exact step functions if they have few points, or on a grid of budgets.

On a grid every size is rounded up, which wastes a little memory for each thing that is held. To make up for that, the
table is computed for a little more than the budget, and the fastest of its plans whose exactly simulated peak fits is
taken. A second grid with sizes rounded down bounds how much better any other plan could be.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from remat.planners.chain.chain_ops import chain_ops
from remat.planners.chain.chain_planner import PERSISTENT, ChainPlanner, least_memory_error
from remat.planners.claim import Claim
from remat.planners.dp.chain_grid import ChainGrid
from remat.planners.dp.chain_least import ChainLeast
from remat.planners.dp.chain_parts import ChainCosts, ChainTable
from remat.planners.dp.chain_steps import ChainSteps, TooManyPoints
from remat.planners.plan import Plan
from remat.problem import Chain, Memory

__all__ = ["OptimalChain"]

MARGIN = 1.08  # a grid is computed for this multiple of the budget
TRIES = 16  # plans of a grid to simulate
LONG = 350  # stages beyond which the grid is coarser
ROUNDING = 1e-5  # more than the relative error of sums of seconds in single precision


@dataclass(frozen=True)
class OptimalChain(ChainPlanner):
    """Keeps, records and recomputes stages (possibly several times) so that the reversal takes the least time.

    An exact plan may compute up to `points` points of step functions, about a second. Beyond that, budgets are rounded
    to `units` units, and to fewer for chains of more than LONG stages, since the time of a table grows with the cube of
    the number of stages.
    """

    points: float = 2.5e6
    units: int = 500

    name: ClassVar[str] = "chain"
    summary: ClassVar[str] = "keep, record and recompute unequal stages, also several times, in the least time"

    def plan(self, problem: Chain, memory: Memory) -> Plan:
        """The plan of least time that fits."""
        steps = _exact(problem, self.points)
        if steps is None:
            return self._rounded(problem, memory)
        capacity = memory.device.capacity
        budget = 2**62 if capacity is None else capacity
        if problem.units and budget < steps.least:
            least = chain_ops(steps.in_budget(steps.least), problem.units, memory.device.name)
            raise least_memory_error(problem, memory, least, steps.least)
        ops = chain_ops(steps.in_budget(budget), problem.units, memory.device.name)
        return self.plan_of(ops, problem, memory, Claim(1.0, PERSISTENT))

    def _rounded(self, problem: Chain, memory: Memory) -> Plan:
        costs, name = ChainCosts.of(problem), memory.device.name
        most = sum(costs.states) + sum(max(o.pullback_peak + o.record_peak for o in each) for each in costs.options)
        capacity = memory.device.capacity
        budget = most if capacity is None else min(capacity, most)
        least = ChainLeast(costs)
        if budget < least.least:
            raise least_memory_error(problem, memory, chain_ops(least, problem.units, name), least.least)
        units = max(50, int(self.units * min(1.0, LONG / problem.units) ** 2))
        grid = ChainGrid(costs, int(budget * MARGIN), units)
        tables: list[ChainTable] = [*(grid.in_budget(units) for units in _budgets(grid, budget)), least]
        for table in tables:
            plan = self.plan_of(chain_ops(table, problem.units, name), problem, memory, Claim(None))
            if plan.peak <= budget:
                break
        del grid, tables, table  # frees their memory before the next grid is computed
        bound = ChainGrid(costs, budget, units // 2, down=True).seconds() * (1 - ROUNDING)
        return replace(plan, claim=Claim(max(1.0, plan.seconds / bound), PERSISTENT))


def _budgets(grid: ChainGrid, budget: int) -> Iterator[int]:
    """Budgets of the grid, from the largest, whose plan may not fit, down to one whose plan surely fits."""
    surely = (budget - grid.costs.states[0]) // grid.unit
    between = range(surely + 1, grid.most + 1)
    tried = [between[len(between) * i // TRIES] for i in range(TRIES)] if between else []
    for units in (grid.most, *sorted(set(tried), reverse=True), surely):
        if grid.seconds(units) < float("inf"):
            yield units


@lru_cache(maxsize=4)
def _exact(chain: Chain, points: float) -> ChainSteps | None:
    """The exact table of a chain for all budgets, or None if it would have too many points."""
    try:
        return ChainSteps(ChainCosts.of(chain), points)
    except TooManyPoints:
        return None
