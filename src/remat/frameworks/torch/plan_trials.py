"""Plans of a model are tried before one is used: the peak of a step by it is inside of the budget.

Rule. A plan is tried on the sample: the peak of a forward and a backward, above the level before it, with all gradients
there. If it is above the budget, since sizes around blocks are not exact, the next plan gets as much less. Of plans of
compiled blocks, or of small ones, that are nearly equal the fastest in whole steps is taken.

The cost: one step a trial, two if it is over the budget.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NoReturn, cast

import torch
from torch import nn

from remat.errors import InfeasibleError
from remat.frameworks.torch.measure_model import MeasuredModel
from remat.frameworks.torch.model_plan import ModelPlan
from remat.frameworks.torch.model_trial import Loss, Trial
from remat.frameworks.torch.plan_agreement import largest, of_first_process
from remat.frameworks.torch.whole_model import MeasuredStep
from remat.planners.claim import Prediction
from remat.problem import Chain, Graph
from remat.schedule import simulate
from remat.units import bytes_text

__all__ = ["PlanTrials"]

TRIALS = 4
NEAR = 1.1  # a plan that is predicted to take longer than so often the best one's time is not tried
ROUNDS = 5  # of steps by plans that are compared, or that are quick
QUICK = 0.5  # seconds of such a step


@dataclass(frozen=True)
class PlanTrials:
    """A model on a sample, and what runs it by a plan."""

    model: nn.Module
    devices: Sequence[torch.device]
    groups: Sequence[Any]  # of processes that try together
    loss: Loss | None
    memory: int
    by_plan: Callable[[ModelPlan], Callable[[], Any]]
    inputs: str = "these inputs"  # for messages

    def fitting(self, measured: MeasuredModel | MeasuredStep) -> ModelPlan:
        """The plan for what was measured; one that takes more than predicted gets as much less in the next trial."""
        # What a caller who holds the model's output needs beside the plan; one who does not has it to spare.
        budget, over = self.memory - measured.outputs, list[tuple[int, int]]()
        for trial in range(TRIALS + 1):
            is_last = False
            try:
                plan = measured.plan(max(0, budget) if trial < TRIALS else 0)
            except InfeasibleError as error:
                if not over:
                    self._raise_least(error, measured)
                if int(error.minimum) in [predicted for predicted, _ in over]:
                    break
                plan, is_last = measured.plan(int(error.minimum)), True  # the least one is the last hope
            found = ModelPlan.of(plan, measured.order)
            peak = self._peak(found)
            if peak > self.memory:  # the first run of a block also compares what it computes again, which takes some
                peak = self._peak(found)
            if peak <= self.memory:
                return self._fastest(found._replace(measured_peak=peak), measured, budget)
            over.append((plan.peak, peak))
            budget = min(budget, plan.peak) - (peak - self.memory)
            if is_last:
                break
        raise _over(self.memory, over)

    def _raise_least(self, error: InfeasibleError, measured: MeasuredModel | MeasuredStep) -> NoReturn:
        """Raise an error that names the least memory: that of the least plan, which is tried, and of the output."""
        least = measured.plan(int(error.minimum))
        try:
            peak = self._peak(ModelPlan.of(least, measured.order))
        except torch.cuda.OutOfMemoryError:
            peak = 0
        needed = max(peak, int(error.minimum) + measured.outputs)
        beside = f", of which {bytes_text(measured.outputs)} are what it returns" if measured.outputs else ""
        alone = "as one graph it needs" if isinstance(measured, MeasuredStep) else "it needs"
        # The planner's own minimum is for the blocks alone: two numbers would leave open which one to give.
        why = re.search(r"( \(.+\)\. )Give at least that(.*)", str(error), re.DOTALL)
        where, advice = (why[1], why[2]) if why else (". ", "")
        raise InfeasibleError(
            f"memory={bytes_text(self.memory)} is too little for this model with {self.inputs}: {alone} "
            f"{bytes_text(needed, up=True)}, {needed:,} bytes, at least{beside}{where}Give at least that{advice}",
            needed,
            "bytes",
        ) from error

    def _fastest(self, found: ModelPlan, measured: MeasuredModel | MeasuredStep, budget: int) -> ModelPlan:
        """The plan, or one that is faster in whole steps of the model, whose seconds are those of such a step.

        Stages that run alone take longer than in a row.
        """
        trial, tried = Trial(self.model, self.devices), [found]
        for plan in measured.alternatives(max(0, budget)):
            other = ModelPlan.of(plan, measured.order)
            if plan.seconds <= NEAR * found.plan.seconds and not any(other.does_as(each) for each in tried):
                peak = self._peak(other)
                if peak <= self.memory:
                    tried.append(other._replace(measured_peak=peak))
        steps = [self.by_plan(each) for each in tried]
        rounds = [[trial.seconds_of(step, self.loss) for step in steps]]
        if steps[1:] or (max(rounds[0]) < QUICK and not self.groups):  # the first step of a few may be a slow one
            rounds += [[trial.seconds_of(step, self.loss) for step in steps] for _ in range(ROUNDS - 1)]
        seconds, best = min((median(column), number) for number, column in enumerate(zip(*rounds, strict=True)))
        seconds, best = of_first_process((seconds, best), self.groups)
        return _with_seconds(tried[best], seconds)._replace(memory=self.memory, outputs=measured.outputs)

    def _peak(self, found: ModelPlan) -> int:
        peak = Trial(self.model, self.devices).run(self.by_plan(found), self.loss).peak
        return largest([peak], self.groups)[0]


def _with_seconds(found: ModelPlan, seconds: float) -> ModelPlan:
    """The plan with times of its stages that make a step take so long."""
    problem = cast("Chain | Graph", found.plan.problem).with_times(seconds / found.plan.seconds)
    prediction = Prediction.of(simulate(found.plan.schedule, problem, found.plan.memory))
    return found._replace(plan=replace(found.plan, problem=problem, prediction=prediction))


def _over(memory: int, over: Sequence[tuple[int, int]]) -> InfeasibleError:
    predicted, peak = min(over, key=lambda each: each[1])
    return InfeasibleError(
        f"no plan stays inside of memory={bytes_text(memory)}: the best one took {bytes_text(peak, up=True)}, "
        f"{bytes_text(peak - memory)} too much, where {bytes_text(predicted)} were predicted. Something holds "
        "memory that is not seen when blocks are measured alone, such as a cache, a hook that stores activations, or "
        "tensors that go past the blocks. Give more memory, or let go of them",
        peak,
        "bytes",
    )
