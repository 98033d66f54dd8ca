"""The fastest schedule of a small graph, found by trying all of them: the oracle for the other graph planners.

This is Dijkstra's algorithm, whose nodes are what has run and what is live. It tries every order of runs, with any
number of recomputations, also before the turn; so no schedule is faster. The number of nodes doubles with each storage.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from remat.errors import PlannerError
from remat.planners.claim import Claim, Prediction
from remat.planners.graph.graph_planner import GraphPlanner
from remat.planners.plan import Plan
from remat.planners.planner import infeasible
from remat.problem import Graph, Memory
from remat.schedule import Free, Op, Run, Schedule, simulate

__all__ = ["EveryRunOrder"]

State = tuple[int, frozenset[int]]  # the number of operations that have run, and the live storages


@dataclass(frozen=True)
class EveryRunOrder(GraphPlanner):
    """Tries every schedule of a graph, up to `most` states of the search."""

    most: int = 2_000_000

    name: ClassVar[str] = "graph-exhaustive"
    summary: ClassVar[str] = "try every schedule of a small graph: the measure of the others"

    def refuses(self, problem: Graph, memory: Memory) -> str | None:
        """The reason to refuse: the search does not follow writes into storages, and needs a memory in bytes."""
        if any(each.writes for each in problem.operations):
            return "it does not follow storages that are written into"
        if len(problem.pauses) < problem.units - problem.turn:
            return "it recomputes before any operation, not only before those that unpack saved tensors"
        return super().refuses(problem, memory)

    def plan(self, problem: Graph, memory: Memory) -> Plan:
        """The fastest schedule that fits."""
        capacity = memory.device.capacity
        ops = self._search(problem, problem.plain_peak if capacity is None else capacity)
        if ops is None:
            raise infeasible(problem, memory.device, self._least(problem), "no schedule takes less")
        schedule = Schedule(tuple(ops))
        prediction = Prediction.of(simulate(schedule, problem, memory))
        return Plan(problem, memory, self.name, Claim(1.0), prediction, schedule)

    def _least(self, graph: Graph) -> int:
        low, high = 0, graph.plain_peak
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._search(graph, middle) is not None else (middle + 1, high)
        return low

    def _search(self, graph: Graph, budget: int) -> list[Op] | None:
        start: State = (0, frozenset())
        best, came, tie = {start: 0.0}, dict[State, tuple[State, list[Op]]](), count()
        queue = [(0.0, next(tie), start)]
        while queue:
            seconds, _, state = heapq.heappop(queue)
            if seconds > best[state]:
                continue
            if state[0] == graph.units:
                return _path(came, state)
            if len(best) > self.most:
                raise PlannerError(f"the graph is too large to try every schedule: over {self.most} states")
            for ops, cost, after in _steps(graph, state, budget):
                if seconds + cost < best.get(after, float("inf")):
                    best[after], came[after] = seconds + cost, (state, ops)
                    heapq.heappush(queue, (seconds + cost, next(tie), after))
        return None


def _steps(graph: Graph, state: State, budget: int) -> Iterator[tuple[list[Op], float, State]]:
    """What can be done next: free a storage, recompute an operation, or run the next one; at the end, free the rest."""
    ran, live = state
    for storage in live:
        if not (storage in graph.outputs and ran < graph.turn) and not _is_final(graph, storage):
            yield [Free(storage)], 0.0, (ran, live - {storage})
    for operation in (*(i for i in graph.run_again if i < ran), *([ran] if ran < graph.units else ())):
        each = graph.operations[operation]
        if not live.issuperset(graph.made_reads[operation]):
            continue
        if graph.bytes_of(live) + graph.running_bytes(operation) <= budget:
            after, new = max(ran, operation + 1), live.union(each.outputs)
            over = sorted(s for s in new if graph.last_use[s] < after and after == graph.units)
            yield [Run(operation), *map(Free, over)], each.seconds, (after, new.difference(over))


def _is_final(graph: Graph, storage: int) -> bool:
    """Whether a storage is a result of the backward, which is never freed."""
    return storage in graph.results and graph.maker[storage] >= graph.turn


def _path(came: dict[State, tuple[State, list[Op]]], state: State) -> list[Op]:
    steps: list[list[Op]] = []
    while state in came:
        state, ops = came[state]
        steps.append(ops)
    return [op for ops in reversed(steps) for op in ops]
