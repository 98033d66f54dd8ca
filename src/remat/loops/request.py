"""The options of a loop call, the same for all frameworks: a budget, a determinism check, a progress callback.

In: the keyword arguments of `remat.scan` and `remat.while_loop`. Out: a plan, once the loop's length is known and,
for a budget in bytes, its step is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from remat.errors import PlannerError, ProblemError, RematError
from remat.execute.determinism import parse_check
from remat.execute.recomputation import is_recomputing
from remat.measuring import StepCost
from remat.memory_meter import fraction_of_free
from remat.planners import Plan, SavePoints
from remat.planners.loop.keep_all import keep_all_bytes
from remat.planners.measured_budget import cached_plan, plan_within
from remat.problem import Loop, Memory
from remat.profiling import CallRecord, CheckpointProfiler
from remat.profiling.source_location import place_of
from remat.progress import Progress, check_progress, reporting_to

__all__ = ["LoopRequest"]


@dataclass(frozen=True)
class LoopRequest:
    """The arguments of one loop call, of which `parse` sets either `memory` or `plan`."""

    memory: Memory | None = None
    plan: Plan | None = None
    check: str = "first"
    progress: Progress | None = None
    call: CallRecord | None = None  # the profile's record of this call, if a profile is open
    counts_only: bool = False  # whether a loop that ends from inside only counts its steps, without effects (`stop.py`)
    carry_names: tuple[str, ...] = ()  # the user's names of the items of the carry, for messages
    place: str = ""  # file and line of the step, or of the rewritten loop: errors of the backward name it
    spare_row: bool = False  # whether stacked outputs have room for one more row before the first (`with_initial`)

    @classmethod
    def parse(
        cls, memory: Any, slots: Any, plan: Any, check: Any, progress: Any, free: Callable[[], int | None] | None = None
    ) -> "LoopRequest":
        """The request for these arguments; contradictions raise an error before any step is run.

        `free` returns the free bytes of the device, for a budget that is a fraction; without it, the host's are used.
        """
        check_progress(progress)
        if plan is not None:
            if memory is not None or slots is not None:
                raise ProblemError("give a plan, or memory= or slots= to make one, not both")
            if not isinstance(plan, Plan):
                raise ProblemError(f"plan must be a Plan, such as remat.plan makes, not {plan!r:.60}")
            if len(plan.memory.levels) > 1:
                raise PlannerError(
                    f"the plan keeps states in several levels ({plan.memory}); loops run in one level yet"
                )
            return cls(None, plan, parse_check(check), progress)
        # Read now, since less is free after the first sweep.
        if isinstance(memory, float):
            memory = fraction_of_free(memory, free)
        budget = Memory.of(memory, slots)
        if len(budget.levels) > 1 or not budget.device.free:
            raise PlannerError(f"loops run in one level without read and write costs yet, and memory is {budget}")
        return cls(budget, None, parse_check(check), progress)

    def for_call(self, step: Callable[..., Any], call: CallRecord | None, framework: str) -> "LoopRequest":
        """The same request with the place of the user's step, attached to a profile's record of the call, if any."""
        if call is not None:
            call.framework = framework
            call.budget = None if self.memory is None else self.memory.device.capacity
        return replace(self, call=call, place=self.place or place_of(step))

    def locate(self, error: RematError) -> None:
        """Put the place in front of an error that the backward raises, where the traceback has no line of the loop."""
        if self.place and self.place not in str(error):
            error.args = (f"{self.place}: {error}", *error.args[1:])

    def record(self, steps: int | None = None, plan: Plan | None = None) -> None:
        """Write the number of steps or the plan into the profile's record."""
        if self.call is not None:
            self.call.steps = self.call.steps if steps is None else steps
            self.call.plan = self.call.plan if plan is None else plan
        if plan is not None and CheckpointProfiler.is_tracking() and not is_recomputing():
            CheckpointProfiler.note(_bytes_saved(plan))

    @property
    def runs_sections(self) -> bool:
        """Whether the plan recomputes only whole sections, each from one kept state to the next."""
        return self.plan is not None and self.plan.planner == SavePoints.name

    def validate(self, steps: int | None) -> None:
        """Raise the errors of planning early; not for a budget in bytes, which would need a measured step."""
        if self.memory is None or self.memory.device.capacity is None:
            self.plan_for(steps, _no_measure)

    def plan_for(self, steps: int | None, measure: Callable[[], StepCost]) -> Plan:
        """The plan for a loop of `steps` steps (None if unknown); `measure` is called if the budget is in bytes."""
        if self.plan is not None:
            problem = self.plan.problem
            if not isinstance(problem, Loop):
                raise ProblemError(
                    f"the plan is for a {problem.kind}; make one with remat.plan(remat.Loop(steps), ...)"
                )
            if problem.steps is None:
                raise ProblemError("the plan is for a loop of unknown length; make one for this length with remat.plan")
            if problem.steps != steps:
                raise ProblemError(
                    f"the plan is for {problem.steps} steps and the loop has {steps}; "
                    "make one with remat.plan(remat.Loop(steps), ...) for this length"
                )
            return self.plan
        assert self.memory is not None
        with reporting_to(self.progress):
            # Slots are counted in states, so the plan does not depend on the sizes of a step.
            if self.memory.device.capacity is None:
                return cached_plan(Loop(steps), self.memory)
            step_cost = measure()
            if self.call is not None and steps is not None:
                self.call.step_cost = step_cost
            return plan_within(step_cost, steps, self.memory)


def _bytes_saved(plan: Plan) -> int:
    """The bytes by which keeping all tapes would exceed the plan's peak; 0 for a plan in slots, without sizes."""
    problem = plan.problem
    if problem == Loop(problem.units):
        return 0
    return max(0, keep_all_bytes(problem) - plan.peak)


def _no_measure() -> StepCost:
    raise AssertionError("a budget in slots needs no measuring")
