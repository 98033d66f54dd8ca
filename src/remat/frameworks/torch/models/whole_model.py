"""A model as one graph: for models without blocks, or whose blocks do not form a chain, such as a UNet with long skips.

In: a model and a call of it. Out: the joint graph of a training step, and plans for it, in which single operators are
rerun at any time in the backward (planners/graph); planned_lineage.py follows them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from remat.errors import ProblemError
from remat.frameworks.torch.internals.functorch import refuses_hooks
from remat.frameworks.torch.models.model_trial import Loss
from remat.frameworks.torch.models.step_trace import trace_step
from remat.planners import Plan
from remat.planners import plan as make_plan
from remat.planners.graph.optimal_graph import OptimalGraph
from remat.planners.graph.relief import least_possible
from remat.problem import Graph

__all__ = ["MeasuredStep", "measure_step", "traceable_step"]

SECONDS = 10.0  # of each search for a plan


@dataclass(frozen=True)
class MeasuredStep:
    """A training step as a graph, which includes the model's outputs."""

    graph: Graph
    order: ClassVar[tuple[int, ...]] = ()
    outputs: ClassVar[int] = 0

    @property
    def least(self) -> int:
        """A lower bound on the bytes of any plan; the best plan may need more."""
        return least_possible(self.graph)

    def plan(self, memory: int) -> Plan:
        """The best plan for this memory that is found within some seconds."""
        return make_plan(self.graph, memory, planner=OptimalGraph(seconds=SECONDS))

    def alternatives(self, memory: int) -> tuple[Plan, ...]:
        """No plans: there is one order of operators, and its times are those of single operators."""
        return ()


def measure_step(
    model: nn.Module, run: Callable[[], Any], loss: Loss | None, devices: Sequence[torch.device]
) -> MeasuredStep:
    """The training step of a model that `run` calls."""
    graph = trace_step(model, run, loss, devices)
    if graph.turn == graph.units:
        raise ProblemError(f"nothing that {type(model).__name__} returned for the sample has a gradient")
    return MeasuredStep(graph)


def traceable_step(
    model: nn.Module, run: Callable[[], Any], loss: Loss | None, devices: Sequence[torch.device]
) -> MeasuredStep | None:
    """The same, or None if it cannot be traced; tracing needs memory for a step that keeps everything."""
    try:
        return measure_step(model, run, loss, devices)
    except torch.cuda.OutOfMemoryError:
        return None
    except RuntimeError as error:
        if refuses_hooks(error):
            return None
        raise
