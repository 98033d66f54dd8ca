"""A plan for the calls of a model's blocks, made from the plan of its chain."""

from collections.abc import Sequence
from typing import NamedTuple

from remat.errors import ProblemError
from remat.execute.nested_ranges import Item, Range, nested_ranges
from remat.frameworks.torch.models.measure_model import AROUND, TOGETHER
from remat.planners import Plan
from remat.problem import Chain, Graph, Stage
from remat.schedule import Record

__all__ = ["ModelPlan", "order_of"]


class ModelPlan(NamedTuple):
    """A plan for the calls of a model's blocks: their numbers in order, and the item of each call."""

    plan: Plan
    order: tuple[int, ...]
    items: tuple[Item, ...]
    remade: tuple[tuple[str, ...], ...]  # for each call: results of operators that are recomputed if it is recorded
    measured_peak: int | None = None  # of the trial; None if the plan was given
    memory: int | None = None  # the budget for the peak
    outputs: int = 0  # bytes, beyond the plan's, for a caller who holds the model's outputs

    @classmethod
    def of(cls, plan: Plan, order: Sequence[int]) -> "ModelPlan":
        """From the plan of a chain, whose stages are calls of these blocks and the code around them, or of a step."""
        chain = plan.problem
        if isinstance(chain, Graph):
            return cls(plan, (), (), ())
        assert isinstance(chain, Chain)
        calls, count = [], 0  # of stages
        options = {op.start: op.option for op in plan.schedule if isinstance(op, Record)}
        remade: list[tuple[str, ...]] = []
        for number, stage in enumerate(chain.stages):
            calls.append(count)
            blocks = len(_blocks_of(stage))
            count += blocks
            remade += [stage.options[options.get(number, 0)].remade] * blocks
        calls.append(count)
        items: list[Item] = []
        for item in _of_calls(nested_ranges(plan.schedule, chain.units), calls):
            items += [item] * (item.stop - item.start) if isinstance(item, Range) else [item]
        return cls(plan, tuple(order), tuple(items), tuple(remade))

    def does_as(self, other: "ModelPlan") -> bool:
        """Whether all blocks run in the same way as in the other plan."""
        return self[1:4] == other[1:4]


def order_of(plan: Plan, names: Sequence[str]) -> list[int]:
    """The numbers of the blocks that a plan is for."""
    chain = plan.problem
    if isinstance(chain, Graph):
        return []
    if not isinstance(chain, Chain):
        raise ProblemError(f"plan= is for a {type(chain).__name__}; a model needs one for its chain of blocks")
    numbers = {name: number for number, name in enumerate(names)}
    called = [name for stage in chain.stages for name in _blocks_of(stage)]
    unknown = [name for name in called if name not in numbers]
    if unknown:
        raise ProblemError(
            f"plan= is for blocks {called[0]!r} to {called[-1]!r}, and this model has no {unknown[0]!r}: its blocks "
            f"are {names[0]!r} to {names[-1]!r}"
        )
    return [numbers[name] for name in called]


def _blocks_of(stage: Stage) -> list[str]:
    """The names of the blocks that a stage calls."""
    return [] if stage.name in AROUND else stage.name.split(TOGETHER)


def _of_calls(items: Sequence[Item], calls: Sequence[int]) -> list[Item]:
    """Items of stages as items of calls; stages that are not calls are left out."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, Range):
            found.append(Range(calls[item.start], calls[item.stop], tuple(_of_calls(item.items, calls))))
        else:
            found += range(calls[item], calls[item + 1])
    return found
