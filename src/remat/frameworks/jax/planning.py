"""Plans for JAX: sizes come from the looks of a step, so nothing is run to plan.

In: what is asked, and a step with what moves. Out: units and slots for the device; the plan they stand for is noted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax

from remat.errors import InfeasibleError, PlannerError
from remat.frameworks.jax.avals import nbytes, select
from remat.frameworks.jax.chunked_steps import unroll_factor
from remat.frameworks.jax.residuals import StepVJP
from remat.frameworks.jax.scan_function import CheckpointLayout
from remat.frameworks.jax.while_function import SlotsFor
from remat.loops.request import LoopRequest
from remat.planners import Chunks, KeepAll, Plan
from remat.planners.loop.binomial import fitting_states, predict
from remat.problem import Loop, Memory
from remat.schedule import Keep, Record, Schedule
from remat.schedule.revolve import RevolveOps
from remat.units import bytes_text

__all__ = ["StepSizes", "layout_of", "online_slots", "plan_for_jit", "step_sizes"]

# Times of a step, forward, recorded and pulled back, and of a range beside its steps, as measured with LSTMs. On
# a GPU each range waits for the host, and for longer if it has a loop of its own, or if the first one is another.
_ON_CPU = 1.0, 1.1, 2.0, 0.5
_UNROLLED = 0.8, 1.0, 2.3, 5.0
_IN_LOOPS = 1.0, 1.2, 2.5, 12.0
_OTHER_FIRST = 5.0


MOST_SLOTS = 1024  # of a loop of unknown length, in bytes: beyond, a million steps are hardly advanced over twice


class StepSizes(NamedTuple):
    """Bytes of a state, of a step's tape, of what is live beside the planner's states and tapes, and of a gradient."""

    state: int
    tape: int
    aside: int
    gradient: int  # of all that the step closes over

    def loop(self, steps: int | None, length: int = 1, seconds: float = 1.0) -> Loop:
        """The problem of so many such steps, in ranges of that length; a step takes so many seconds."""
        on_cpu = jax.default_backend() == "cpu"
        forward, record, backward, per_range = (
            _ON_CPU if on_cpu else _UNROLLED if length <= unroll_factor(length) else _IN_LOOPS
        )
        per_range += _OTHER_FIRST if steps and steps % length and not on_cpu else 0.0
        forward, record, backward, per_range = (seconds * part for part in (forward, record, backward, per_range))
        return Loop(steps, max(1, self.state), self.tape, forward, record, backward, per_range=per_range)


def step_sizes(step_vjp: StepVJP) -> StepSizes:
    """The sizes of a step, by its looks."""
    step, avals = step_vjp.step, step_vjp.step.avals
    state = sum(map(nbytes, avals[step.consts : step.consts + step.carry]))
    gradient = sum(map(nbytes, select(step_vjp.activity.consts, avals[: step.consts])))
    # One more state than the slots, which takes what is not kept; the carry and the cotangent are copied where loops
    # begin; and while a step is pulled back, about a tape more is under way.
    return StepSizes(state, step_vjp.nbytes, 4 * state + step_vjp.nbytes + step_vjp.shared_nbytes, gradient)


@dataclass(frozen=True)
class PlanForJit:
    """Who plans a loop once it is differentiated."""

    request: LoopRequest = field(compare=False)
    memory: Memory | None
    plan: int | None  # which one, if one was given

    def __call__(self, step_vjp: StepVJP, steps: int) -> CheckpointLayout:
        """Units and slots for so many steps."""
        request = self.request
        if request.memory is not None and request.memory.device.capacity is not None:
            plan = _within(step_sizes(step_vjp), steps, request.memory.device.capacity)
        else:
            plan = request.plan_for(steps, _nothing_to_measure)
        request.record(steps, plan)
        return layout_of(plan)


def plan_for_jit(request: LoopRequest) -> PlanForJit:
    """The planner for what is asked."""
    return PlanForJit(request, request.memory, None if request.plan is None else id(request.plan))


def online_slots(request: LoopRequest) -> SlotsFor:
    """Who says how many states a loop of unknown length keeps."""

    def slots(step_vjp: StepVJP) -> int:
        assert request.memory is not None
        level = request.memory.device
        if level.capacity is None:
            return level.slots or 1
        sizes = step_sizes(step_vjp)
        least = sizes.aside + 4 * sizes.state + sizes.tape
        found = (level.capacity - sizes.aside - sizes.tape) // max(1, sizes.state) - 3
        if found < 1:
            raise _too_small(sizes, level.capacity, least)
        return min(found, MOST_SLOTS)

    return slots


def _nothing_to_measure() -> Any:
    raise AssertionError("a budget in slots needs no measuring")


@lru_cache(maxsize=64)
def _within(sizes: StepSizes, steps: int, memory: int) -> Plan:
    """The fastest plan in so many bytes, with ranges of equal length but for the first: what runs inside jit."""
    best: tuple[float, int, int, int] | None = None
    least = memory + 1
    for length in _lengths(max(1, steps)):
        # The shorter range at the beginning has a tape of its own; turns of several steps have gradients of their own.
        aside = sizes.aside + steps % length * sizes.tape + (unroll_factor(length) - 1) * sizes.gradient
        level, loop = Memory(max(0, memory - aside)).device, sizes.loop(steps, length)
        try:
            cost = predict(loop, fitting_states(loop, level, length), length)
        except InfeasibleError as error:
            least = error.minimum + aside if length == 1 else least
            continue
        found = cost.seconds, cost.peak, length, aside
        best = found if best is None else min(best, found)
    if best is None:
        raise _too_small(sizes, memory, least)
    _, _, length, aside = best
    budget, loop = Memory(memory - aside), sizes.loop(steps, length)
    plan = KeepAll().plan(loop, budget) if length >= steps else Chunks(length).plan(loop, budget)
    reason = "all tapes fit, so nothing is recomputed" if length >= steps else "the fastest ranges of equal length"
    return plan.because(f"{reason}; {bytes_text(aside)} of {bytes_text(memory)} are set aside for a step")


def _lengths(steps: int) -> Iterator[int]:
    """Lengths of ranges: for each number of ranges the least, in whole turns."""
    length = steps
    while length:
        yield length if length < 4 else length - length % unroll_factor(4)
        length = -(-steps // (-(-steps // length) + 1)) if length * length > steps else length - 1


def _too_small(sizes: StepSizes, have: int, least: int) -> InfeasibleError:
    return InfeasibleError(
        f"no plan fits {bytes_text(have)}: the smallest that works is {bytes_text(least, up=True)}. A state takes "
        f"{bytes_text(sizes.state, up=True)}, a step's tape {bytes_text(sizes.tape, up=True)}; "
        f"{bytes_text(sizes.aside, up=True)} are set aside for what a step allocates while it runs",
        least,
        "bytes",
    )


def layout_of(plan: Plan) -> CheckpointLayout:
    """Units and slots that run a plan; one that holds tapes or other ranges raises a PlannerError."""
    ops, steps = plan.schedule.source, plan.problem.units
    if isinstance(ops, RevolveOps):
        return CheckpointLayout(steps, min(ops.slots, steps), min(ops.chunk, max(1, steps)))
    kept, most, longest = 0, 0, 1
    for op in plan.schedule:
        if isinstance(op, Record):
            longest = max(longest, op.stop - op.start)
        elif isinstance(op, Keep):
            kept += 1
            most = max(most, kept)
        elif type(op).__name__ == "Drop":
            kept -= 1
    level = plan.memory.device.name
    if plan.schedule != Schedule(RevolveOps(steps, most, longest, level)):
        raise PlannerError(
            f"inside jit, plans of the binomial, chunks and keep-all planners are run, and this is one of "
            f"{plan.planner}: it holds tapes, or records ranges of different lengths. Give slots= or memory=, or "
            "driven=True, which runs any plan outside of jit"
        )
    return CheckpointLayout(steps, most, longest)
