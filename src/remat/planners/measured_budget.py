"""A plan for a loop whose step was measured, in a budget of bytes that includes what a running step allocates.

From the measured `StepCost`, the number of steps and a memory, `plan_within` makes a `Plan` whose own memory is what
the budget leaves for states and tapes.
"""

from functools import lru_cache

from remat.errors import InfeasibleError
from remat.measuring import StepCost
from remat.planners import Auto, Plan, plan
from remat.problem import Loop, Memory
from remat.schedule import Pullback, Record
from remat.schedule.machine import Machine
from remat.units import bytes_text

__all__ = ["cached_plan", "plan_within"]

PEAK_TOLERANCE = 1.02  # the predicted peak may be wrong by at most this factor

cached_plan = lru_cache(maxsize=64)(plan)


def plan_within(step_cost: StepCost, steps: int | None, memory: Memory) -> Plan:
    """The plan for `steps` steps in what a step's workspace and bookkeeping leave of the memory."""
    capacity = memory.device.capacity
    assert capacity is not None
    overhead = step_cost.workspace + min(step_cost.bookkeeping, capacity // 5)  # at most a fifth of the budget
    loop = step_cost.loop.with_steps(steps)
    # Planning itself takes about 40 bytes per step and budget of an exact table, and about 200 per budget in the search
    # for long loops. It must not take more memory than it plans.
    planner = Auto(most=min(Auto.most, (steps or 0) * capacity / 100), fine=max(1000, min(Auto.fine, capacity // 1000)))
    budget = Memory(max(0, capacity - overhead))
    try:
        chosen = _plan_by_ranges(step_cost, loop, budget, planner)
        if chosen is None:
            loop = step_cost.as_single_steps.with_steps(steps)
            chosen = cached_plan(loop, budget, planner=planner)
    except InfeasibleError as error:
        need = error.minimum + step_cost.workspace
        # The least capacity c with c - min(bookkeeping, c // 5) >= need.
        least = min(need + (need - 1) // 4, need + step_cost.bookkeeping)
        raise InfeasibleError(
            f"no plan fits {bytes_text(capacity)}: the smallest that works is {bytes_text(least, up=True)}. A state "
            f"takes {bytes_text(loop.state, up=True)}, a step's tape {bytes_text(loop.tape, up=True)}; "
            f"{bytes_text(overhead, up=True)} are set aside for what a step allocates while it runs and for "
            "bookkeeping",
            least,
            "bytes",
        ) from None
    reserved = capacity - (chosen.memory.device.capacity or 0)
    return chosen.because(
        f"{chosen.reason}; {bytes_text(reserved)} of {bytes_text(capacity)} are set aside for what a step allocates "
        "while it runs and for bookkeeping"
    )


def _plan_by_ranges(step_cost: StepCost, loop: Loop, memory: Memory, planner: Auto) -> Plan | None:
    """The plan that counts only what each step adds to a recorded range, or None if none fits.

    Each range takes `bytes_per_range` more, and only a finished plan shows how many ranges are live at once. If they do
    not fit, the budget is reduced by the missing bytes and the loop is planned again.
    """
    capacity = memory.device.capacity or 0
    budget = capacity - step_cost.bytes_per_range
    if loop.steps is None:
        return None
    for _ in range(4):
        try:
            candidate = cached_plan(loop, Memory(max(0, budget)), planner=planner)
        except InfeasibleError:
            return None
        need, peak = _peak_with_overheads(candidate, step_cost)
        if peak > PEAK_TOLERANCE * candidate.peak:
            return None
        if need <= capacity:
            return candidate
        budget = candidate.peak - (need - capacity)
    return None


def _peak_with_overheads(plan: Plan, step_cost: StepCost) -> tuple[int, int]:
    """The peak bytes of a plan with the bytes per range included: with and without the workspace of pullbacks."""
    machine = Machine(plan.problem)
    with_workspace = peak = live_ranges = 0
    for op in plan.schedule:
        machine.apply(op)
        live_ranges += isinstance(op, Record)
        live = machine.device_size + live_ranges * step_cost.bytes_per_range
        peak = max(peak, live)
        if isinstance(op, Pullback):
            live += (op.stop - op.start) * step_cost.pullback_workspace
            live_ranges -= 1
        with_workspace = max(with_workspace, live)
    return with_workspace, peak
