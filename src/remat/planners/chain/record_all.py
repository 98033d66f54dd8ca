"""Record every stage of a chain once with its fastest option, as a framework does without remat."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from remat.planners.chain.chain_planner import ChainPlanner
from remat.planners.claim import Claim
from remat.planners.plan import Plan
from remat.planners.planner import infeasible
from remat.problem import Chain, Memory
from remat.schedule import Op, Pullback, Record, Turn

__all__ = ["RecordAll", "fastest_option"]


@dataclass(frozen=True)
class RecordAll(ChainPlanner):
    """Holds every tape until it is used: no recomputation, and the most memory."""

    name: ClassVar[str] = "chain-keep-all"
    summary: ClassVar[str] = "record every stage once, recompute nothing"

    def plan(self, problem: Chain, memory: Memory) -> Plan:
        """The plan that records everything; it fits if all tapes do."""
        plan = self.plan_of(_ops(problem), problem, memory, Claim(1.0))
        if memory.device.capacity is not None and plan.peak > memory.device.capacity:
            raise infeasible(problem, memory.device, plan.peak, f"the tapes of all {problem.units} stages at once")
        return plan


def fastest_option(chain: Chain, stage: int) -> int:
    """The option with which a stage is recorded and pulled back in the least time."""
    options = chain.stages[stage].options
    return min(range(len(options)), key=lambda k: options[k].record + options[k].backward)


def _ops(chain: Chain) -> Iterator[Op]:
    for stage in range(chain.units):
        yield Record(stage, stage + 1, fastest_option(chain, stage))
    yield Turn()
    for stage in reversed(range(chain.units)):
        yield Pullback(stage + 1, stage)
