"""Plans of a model are tried before one is used: its measured peak must be within the budget.

The rule: a trial measures the peak of a forward and a backward on the sample, above the level before it, with all
gradients allocated. If the peak is over the budget, since the sizes around blocks are not exact, the next plan is made
for that much less memory. Among nearly equal plans of compiled or small blocks, the fastest in whole steps is taken.

The cost: one step per trial, two if it is over the budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any, NoReturn, cast

import torch
from torch import nn

from remat.errors import InfeasibleError
from remat.frameworks.torch.models.measure_model import MeasuredModel
from remat.frameworks.torch.models.model_plan import ModelPlan
from remat.frameworks.torch.models.model_trial import Loss, Trial
from remat.frameworks.torch.models.plan_agreement import largest, of_first_process
from remat.frameworks.torch.models.whole_model import MeasuredStep
from remat.planners.claim import Prediction
from remat.problem import Chain, Graph
from remat.schedule import simulate
from remat.units import bytes_text

__all__ = ["PlanTrials"]

TRIALS = 4
NEAR = 1.1  # plans whose predicted time is over this many times that of the best are not tried
ROUNDS = 5  # of steps, for plans that are compared or quick
QUICK = 0.5  # seconds of a quick step


@dataclass(frozen=True)
class PlanTrials:
    """A model on a sample; `by_plan` returns a function that runs it according to a plan."""

    model: nn.Module
    devices: Sequence[torch.device]
    groups: Sequence[Any]  # of processes that try together
    loss: Loss | None
    memory: int
    by_plan: Callable[[ModelPlan], Callable[[], Any]]
    inputs: str = "these inputs"  # for messages

    def fitting(self, measured: MeasuredModel | MeasuredStep, known: float = inf) -> ModelPlan:
        """A plan whose trial is within the budget; after a trial over it, the next plan gets that much less memory.

        If there is none, the error names the least memory, which is tried only if it may be below what is `known`.
        """
        # Leaves room for the model's outputs, which a caller may hold besides what the plan counts.
        budget, over = self.memory - measured.outputs, list[tuple[int, int]]()
        for trial in range(TRIALS + 1):
            is_last = False
            try:
                plan = measured.plan(max(0, budget) if trial < TRIALS else 0)
            except InfeasibleError as error:
                if not over:
                    if error.minimum >= known:
                        raise
                    self._raise_least(error, measured)
                if int(error.minimum) in [predicted for predicted, _ in over]:
                    break
                plan, is_last = measured.plan(int(error.minimum)), True  # try the plan of least memory last
            found = ModelPlan.of(plan, measured.order)
            peak = self._peak(found)
            if peak > self.memory:  # the first run of a block includes its determinism check, which takes memory
                peak = self._peak(found)
            if peak <= self.memory:
                return self._fastest(found._replace(measured_peak=peak), measured, budget)
            over.append((plan.peak, peak))
            budget = min(budget, plan.peak) - (peak - self.memory)
            if is_last:
                break
        raise _over(self.memory, over)

    def _raise_least(self, error: InfeasibleError, measured: MeasuredModel | MeasuredStep) -> NoReturn:
        """Raise an error that names the least memory: that of the smallest plan, which is tried, and of the outputs."""
        least = measured.plan(int(error.minimum))
        try:
            peak = self._peak(ModelPlan.of(least, measured.order))
        except torch.cuda.OutOfMemoryError:
            peak = 0
        needed = max(peak, int(error.minimum) + measured.outputs)
        beside = f", of which {bytes_text(measured.outputs)} are what it returns" if measured.outputs else ""
        alone = "as one graph it needs" if isinstance(measured, MeasuredStep) else "it needs"
        # The planner's own minimum, for the blocks alone, is left out: two numbers would be ambiguous.
        where, advice = f" ({error.why})" if error.why else "", f", or {error.advice}" if error.advice else ""
        raise InfeasibleError(
            f"memory={bytes_text(self.memory)} is too little for this model with {self.inputs}: {alone} "
            f"{bytes_text(needed, up=True)}, {needed:,} bytes, at least{beside}{where}. Give at least that{advice}",
            needed,
            "bytes",
            error.why,
            error.advice,
        ) from error

    def _fastest(self, found: ModelPlan, measured: MeasuredModel | MeasuredStep, budget: int) -> ModelPlan:
        """The plan, or an alternative that is faster in whole steps; its seconds are those measured in whole steps.

        Stages take longer when they run alone than in a whole step.
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
        if steps[1:] or (max(rounds[0]) < QUICK and not self.groups):  # the first step may be slow
            rounds += [[trial.seconds_of(step, self.loss) for step in steps] for _ in range(ROUNDS - 1)]
        seconds, best = min((median(column), number) for number, column in enumerate(zip(*rounds, strict=True)))
        seconds, best = of_first_process((seconds, best), self.groups)
        return _with_seconds(tried[best], seconds)._replace(memory=self.memory, outputs=measured.outputs)

    def _peak(self, found: ModelPlan) -> int:
        peak = Trial(self.model, self.devices).run(self.by_plan(found), self.loss).peak
        return largest([peak], self.groups)[0]


def _with_seconds(found: ModelPlan, seconds: float) -> ModelPlan:
    """The plan with the times of its stages scaled so that a step takes this long."""
    problem = cast("Chain | Graph", found.plan.problem).with_times(seconds / found.plan.seconds)
    prediction = Prediction.of(simulate(found.plan.schedule, problem, found.plan.memory))
    return found._replace(plan=replace(found.plan, problem=problem, prediction=prediction))


def _over(memory: int, over: Sequence[tuple[int, int]]) -> InfeasibleError:
    predicted, peak = min(over, key=lambda each: each[1])
    return InfeasibleError(
        f"no plan stays inside memory={bytes_text(memory)}: the best one took {bytes_text(peak, up=True)}, "
        f"{bytes_text(peak - memory)} too much, where {bytes_text(predicted)} were predicted. Something holds "
        "memory that is not seen when blocks are measured alone, such as a cache, a hook that stores activations, or "
        "tensors that bypass the blocks. Free them, or give more memory",
        peak,
        "bytes",
    )
