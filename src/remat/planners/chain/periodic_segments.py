"""The usual checkpointing of a chain: every segment but the last first runs without a tape, and later again with one.

Like `torch.utils.checkpoint.checkpoint_sequential`: segments have equal numbers of stages, the inputs of segments are
kept, and each segment is recorded as a whole before it is pulled back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from remat.errors import ProblemError
from remat.planners.chain.chain_planner import ChainPlanner
from remat.planners.chain.record_all import fastest_option
from remat.planners.claim import Claim
from remat.planners.plan import Plan
from remat.planners.planner import infeasible
from remat.problem import Chain, Memory
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn

__all__ = ["PeriodicSegments"]


@dataclass(frozen=True)
class PeriodicSegments(ChainPlanner):
    """Cuts the chain into `k` segments, or into the fastest number of segments that fits."""

    k: int | None = None

    name: ClassVar[str] = "chain-segments"
    summary: ClassVar[str] = "equal segments, each run once more: the usual checkpointing, for comparison"

    def refuses(self, problem: Chain, memory: Memory) -> str | None:
        """The reason to refuse, unless every stage can be recomputed."""
        once = [i for i, stage in enumerate(problem.stages) if not stage.repeatable]
        if once:
            return f"it runs every stage again, and stage {once[0]} can be run only once"
        return super().refuses(problem, memory)

    def plan(self, problem: Chain, memory: Memory) -> Plan:
        """The plan with `k` segments, or with the fastest number that fits."""
        if self.k is not None and not 1 <= self.k <= max(problem.units, 1):
            raise ProblemError(f"k={self.k} segments cannot be made of {problem.units} stages")
        counts = range(1, max(problem.units, 1) + 1) if self.k is None else [self.k]
        plans = [self.plan_of(_ops(problem, k, memory.device.name), problem, memory, Claim(None)) for k in counts]
        capacity = memory.device.capacity
        fitting = [plan for plan in plans if capacity is None or plan.peak <= capacity]
        if not fitting:
            least = min(plans, key=lambda plan: plan.peak)
            raise infeasible(problem, memory.device, least.peak, f"with {plans.index(least) + 1} segments")
        return min(fitting, key=lambda plan: plan.seconds)


def _ops(chain: Chain, k: int, level: str) -> Iterator[Op]:
    """The ops for k segments; the last one includes the remainder."""
    size = max(1, chain.units // k)
    starts = [i * size for i in range(k)] if chain.units else []
    segments = list(zip(starts, [*starts[1:], chain.units], strict=True))
    for start, stop in segments[:-1]:
        yield Keep(start, level)
        yield Advance(start, stop)
    for start, stop in reversed(segments):
        if stop < chain.units:
            yield Fetch(start, level)
            yield Drop(start, level)
        yield from (Record(stage, stage + 1, fastest_option(chain, stage)) for stage in range(start, stop))
        if stop == chain.units:
            yield Turn()
        yield from (Pullback(stage + 1, stage) for stage in reversed(range(start, stop)))
    if not segments:
        yield Turn()
