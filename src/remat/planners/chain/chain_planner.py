"""What chain planners share: the memories they accept, and how a schedule becomes a plan."""

from collections.abc import Iterable
from typing import ClassVar

from remat.errors import InfeasibleError
from remat.planners.claim import Claim, Prediction
from remat.planners.plan import Plan
from remat.planners.planner import Planner, infeasible
from remat.problem import Chain, Memory
from remat.schedule import Op, Pullback, Record, Schedule, simulate

__all__ = ["PERSISTENT", "ChainPlanner", "least_memory_error"]

PERSISTENT = "persistent schedules of these stages and options"


class ChainPlanner(Planner[Chain]):
    """A planner for chains in one level of bytes."""

    problem_type: ClassVar[type[Chain]] = Chain

    def refuses(self, problem: Chain, memory: Memory) -> str | None:
        """The reason to refuse, unless the memory is one level in bytes without read and write costs."""
        if len(memory.levels) > 1 or not memory.device.free:
            return "it plans chains in one level without read and write costs"
        if memory.device.slots is not None:
            return 'states of a chain differ in size, so a count of them bounds nothing: give bytes, memory="2 GiB"'
        return None

    def plan_of(self, ops: Iterable[Op], problem: Chain, memory: Memory, claim: Claim) -> Plan:
        """The plan with these ops."""
        schedule = Schedule(tuple(ops))
        prediction = Prediction.of(simulate(schedule, problem, memory))
        return Plan(problem, memory, self.name, claim, prediction, schedule)


def least_memory_error(problem: Chain, memory: Memory, ops: Iterable[Op], least: int) -> InfeasibleError:
    """The error that names the least memory, and the stage at which `ops`, which need that much, reach their peak."""
    trace = simulate(Schedule(tuple(ops)), problem)
    event = next(event for event in trace if event.index == trace.totals.peak_index)
    op = event.op
    if not hasattr(op, "start"):
        return infeasible(problem, memory.device, least, "its states alone take that")
    name = problem.unit_name(op.start)
    doing = {Record: "is recorded", Pullback: "is pulled back"}.get(type(op), "runs")
    return infeasible(problem, memory.device, least, f"while stage {op.start}{f' {name!r}' * bool(name)} {doing}")
