"""Plans for loops inside jit: sizes come from the avals of a step, so that planning runs nothing.

In: the request, and a step with its VJP. Out: a `CheckpointLayout`, which is chunks and slots for the device; the
corresponding plan is recorded in the profile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from remat.errors import InfeasibleError, PlannerError
from remat.frameworks.jax.loops.chunked_steps import unroll_factor
from remat.frameworks.jax.loops.inner_budgets import within_share
from remat.frameworks.jax.loops.measure import StepSizes, step_sizes
from remat.frameworks.jax.loops.residuals import StepVJP
from remat.frameworks.jax.loops.scan_function import CheckpointLayout
from remat.frameworks.jax.loops.tape_contents import residuals_of_step
from remat.loops.request import LoopRequest
from remat.planners import Chunks, KeepAll, Plan
from remat.planners.loop.binomial import fitting_states, predict
from remat.problem import Memory
from remat.schedule import Drop, Keep, Record, Schedule
from remat.schedule.revolve import RevolveOps
from remat.units import bytes_text

__all__ = ["layout_of", "online_slots", "plan_for_jit"]

# The most slots of a loop of unknown length with a budget in bytes: with this many, a million steps are hardly advanced
# over twice, and more would only make the tables longer.
MOST_SLOTS = 1024


@dataclass(frozen=True)
class PlanForJit:
    """Plans a loop when it is differentiated; equal planners make equal plans and share compiled programs."""

    request: LoopRequest = field(compare=False)
    memory: Memory | None
    plan: int | None  # the id of the user's plan, if there is one
    share: int | None = None  # what a loop around this one leaves to it

    @property
    def capacity(self) -> int | None:
        """The budget in bytes, if it is one."""
        return _capacity(self.memory, self.share)

    def limited(self, share: int) -> "PlanForJit":
        """The planner for a smaller budget, if it suffices; itself if the budget is not in bytes."""
        return self if self.capacity is None else replace(self, share=share)

    def __call__(self, step_vjp: StepVJP, steps: int) -> CheckpointLayout:
        """Chunks and slots for a loop of `steps` steps."""
        request = self.request
        if request.memory is not None and request.memory.device.capacity is not None:
            sizes = step_sizes(step_vjp)
            plan = within_share(
                lambda budget: _plan_within(sizes, steps, budget), request.memory.device.capacity, self.share
            )
        else:
            plan = request.plan_for(steps, _nothing_to_measure)
        request.record(steps, plan)
        if request.call is not None:  # the compiled loop cannot be observed while it runs
            request.call.note_tape(residuals_of_step(step_vjp))
        return layout_of(plan)


def plan_for_jit(request: LoopRequest) -> PlanForJit:
    """The planner for a request."""
    return PlanForJit(request, request.memory, None if request.plan is None else id(request.plan))


@dataclass(frozen=True)
class OnlineSlots:
    """How many states a loop of unknown length keeps, decided when it is differentiated."""

    memory: Memory
    share: int | None = None  # what a loop around this one leaves to it

    @property
    def capacity(self) -> int | None:
        """The budget in bytes, if it is one."""
        return _capacity(self.memory, self.share)

    def limited(self, share: int) -> "OnlineSlots":
        """The number for a smaller budget, if it suffices; itself if the budget is not in bytes."""
        return self if self.capacity is None else replace(self, share=share)

    def __call__(self, step_vjp: StepVJP) -> int:
        """The number of states for a loop with this step."""
        level = self.memory.device
        if level.capacity is None:
            return level.slots or 1
        sizes = step_sizes(step_vjp)
        return within_share(lambda budget: _slots_within(sizes, budget), level.capacity, self.share)


def _slots_within(sizes: StepSizes, budget: int) -> int:
    least = sizes.workspace + 4 * sizes.state + sizes.tape
    count = (budget - sizes.workspace - sizes.tape) // max(1, sizes.state) - 3
    if count < 1:
        raise _too_small(sizes, budget, least)
    return min(count, MOST_SLOTS)


def _capacity(memory: Memory | None, share: int | None) -> int | None:
    capacity = None if memory is None else memory.device.capacity
    return capacity if capacity is None or share is None else min(capacity, share)


def online_slots(request: LoopRequest) -> OnlineSlots:
    """The slots of a loop of unknown length for a request."""
    assert request.memory is not None
    return OnlineSlots(request.memory)


def _nothing_to_measure() -> Any:
    raise AssertionError("a budget in slots needs no measuring")


@lru_cache(maxsize=64)
def _plan_within(sizes: StepSizes, steps: int, memory: int) -> Plan:
    """The fastest plan in `memory` bytes with chunks of equal length but for the first, as it can run inside jit."""
    best: tuple[float, int, int, int] | None = None
    least = memory + 1
    for length in _lengths(max(1, steps)):
        # A shorter first chunk has its own buffer of residuals, and each step of an unrolled iteration its own
        # gradients.
        workspace = sizes.workspace + steps % length * sizes.tape + (unroll_factor(length) - 1) * sizes.gradient
        # The loop over the steps of a chunk has shared residuals as its carry, next to those that a step makes.
        workspace += sizes.shared if length > 1 else 0
        level, loop = Memory(max(0, memory - workspace)).device, sizes.loop(steps, length)
        try:
            cost = predict(loop, fitting_states(loop, level, length), length)
        except InfeasibleError as error:
            least = error.minimum + workspace if length == 1 else least
            continue
        candidate = cost.seconds, cost.peak, length, workspace
        best = candidate if best is None else min(best, candidate)
    if best is None:
        raise _too_small(sizes, memory, least)
    _, _, length, workspace = best
    budget, loop = Memory(memory - workspace), sizes.loop(steps, length)
    plan = KeepAll().plan(loop, budget) if length >= steps else Chunks(length).plan(loop, budget)
    reason = "all tapes fit, so nothing is recomputed" if length >= steps else "the fastest ranges of equal length"
    return plan.because(f"{reason}; {bytes_text(workspace)} of {bytes_text(memory)} are set aside for a step")


def _lengths(steps: int) -> Iterator[int]:
    """Chunk lengths to try: for each number of chunks the smallest, in whole iterations of an unrolled loop."""
    length = steps
    while length:
        # Above √steps many lengths give the same number of chunks, and only the smallest is tried; below, none do.
        yield length if length < 4 else length - length % unroll_factor(4)
        length = -(-steps // (-(-steps // length) + 1)) if length * length > steps else length - 1


def _too_small(sizes: StepSizes, have: int, least: int) -> InfeasibleError:
    return InfeasibleError(
        f"no plan fits {bytes_text(have)}: the smallest that works is {bytes_text(least, up=True)}. A state takes "
        f"{bytes_text(sizes.state, up=True)}, a step's tape {bytes_text(sizes.tape, up=True)}; "
        f"{bytes_text(sizes.workspace, up=True)} are set aside for what a step allocates while it runs",
        least,
        "bytes",
    )


def layout_of(plan: Plan) -> CheckpointLayout:
    """The chunks and slots that run a plan; raises a PlannerError if it keeps tapes or has unequal chunks."""
    source, steps = plan.schedule.source, plan.problem.units
    if isinstance(source, RevolveOps):
        return CheckpointLayout(steps, min(source.slots, steps), min(source.chunk, max(1, steps)))
    kept, most, longest = 0, 0, 1
    for op in plan.schedule:
        if isinstance(op, Record):
            longest = max(longest, op.stop - op.start)
        elif isinstance(op, Keep):
            kept += 1
            most = max(most, kept)
        elif isinstance(op, Drop):
            kept -= 1
    level = plan.memory.device.name
    # A plan from a file or from another planner may be the same plan: its ops decide, not its name.
    is_binomial = (most > 0 or longest >= steps) and plan.schedule == Schedule(RevolveOps(steps, most, longest, level))
    if not is_binomial:
        raise PlannerError(
            f"inside jit, only plans of the binomial, chunks and keep-all planners can run, and this one is by "
            f"{plan.planner}: it holds tapes, or records ranges of different lengths. Give slots= or memory=, or "
            "driven=True, which runs any plan outside jit"
        )
    return CheckpointLayout(steps, most, longest)
