"""What graph planners share: the memories they accept, how runs become a plan, and the error for too little memory."""

from collections.abc import Sequence
from typing import ClassVar

from remat.errors import InfeasibleError
from remat.ops import Run
from remat.planners.claim import Claim, Prediction
from remat.planners.graph.relief import least_possible
from remat.planners.graph.run_order import live_bytes, with_frees
from remat.planners.plan import Plan
from remat.planners.planner import Planner, infeasible
from remat.problem import Graph, Memory
from remat.schedule import Schedule, simulate

__all__ = ["GraphPlanner", "peak_of", "too_little"]


class GraphPlanner(Planner[Graph]):
    """A planner for graphs in one level of bytes."""

    problem_type: ClassVar[type[Graph]] = Graph

    def refuses(self, problem: Graph, memory: Memory) -> str | None:
        """The reason to refuse, unless the memory is one level in bytes without read and write costs."""
        if len(memory.levels) > 1 or not memory.device.free:
            return "it plans graphs in one level without read and write costs"
        if memory.device.slots is not None:
            return 'storages of a graph differ in size, so a count of them bounds nothing: give bytes, memory="2 GiB"'
        return None

    def plan_of(self, runs: Sequence[int], problem: Graph, memory: Memory, claim: Claim) -> Plan:
        """The plan that runs these operations in this order."""
        schedule = Schedule(with_frees(problem, runs))
        prediction = Prediction.of(simulate(schedule, problem, memory))
        return Plan(problem, memory, self.name, claim, prediction, schedule)


def peak_of(graph: Graph, runs: Sequence[int]) -> int:
    """The most bytes live when these operations run in this order."""
    return max(live_bytes(graph, runs), default=0)


def too_little(graph: Graph, memory: Memory, runs: Sequence[int], proved: bool) -> InfeasibleError:
    """The error that names the least memory, which is the peak of `runs`, and the operation at that peak."""
    trace = simulate(with_frees(graph, runs), graph)
    event = next(event for event in trace if event.index == trace.totals.peak_index)
    number = event.op.operation if isinstance(event.op, Run) else 0
    why = f"while operation {number}, {graph.operations[number].where}, runs"
    if trace.peak > least_possible(graph):
        why += (
            "; in this order of operations" if proved else "; that is the least that was found, a little less may work"
        )
    return infeasible(graph, memory.device, trace.peak, why)
