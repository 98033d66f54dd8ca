"""What the caller of a loop asks for, the same for all frameworks: a budget, when to compare, who hears of progress.

In: the keyword arguments of `remat.scan` and `remat.while_loop`. Out: a plan, once the loop's length is known and,
for a budget in bytes, its step is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from remat.errors import InfeasibleError, PlannerError, ProblemError
from remat.execute import Interpreter
from remat.execute.backend_protocol import Backend
from remat.execute.determinism import DeterminismCheck, parse_check
from remat.measuring import StepCost
from remat.planners import Auto, Plan, plan
from remat.problem import Loop, Memory
from remat.profiling import CallRecord
from remat.progress import Progress, check_progress, reporting_to
from remat.schedule import Pullback, Record
from remat.schedule.machine import Machine
from remat.units import bytes_text

__all__ = ["LoopRequest", "free_host_bytes"]

PEAK_TOLERANCE = 1.02  # the most that a prediction of the peak may be wrong by


@dataclass(frozen=True)
class LoopRequest:
    """A budget as memory, slots or a plan of one's own, and how to run."""

    memory: Memory | None = None
    plan: Plan | None = None
    check: str = "first"
    progress: Progress | None = None
    call: CallRecord | None = None  # the profile's entry for this call, if anyone profiles

    @classmethod
    def parse(
        cls, memory: Any, slots: Any, plan: Any, check: Any, progress: Any, free: Callable[[], int | None] | None = None
    ) -> "LoopRequest":
        """What the arguments mean; contradictions raise an error before anything is run.

        `free` says how many bytes are free on the device, if it is not this machine's own memory.
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
        if isinstance(memory, float):
            memory = _fraction_of_free(memory, free)
        chosen = Memory.of(memory, slots)
        if len(chosen.levels) > 1 or not chosen.device.free:
            raise PlannerError(f"loops run in one level without read and write costs yet, and memory is {chosen}")
        return cls(chosen, None, parse_check(check), progress)

    def for_profile(self, call: CallRecord | None, framework: str) -> "LoopRequest":
        """The same, for a call that a profile has an entry of."""
        if call is None:
            return self
        call.framework = framework
        call.budget = None if self.memory is None else self.memory.device.capacity
        return replace(self, call=call)

    def record(self, steps: int | None = None, plan: Plan | None = None) -> None:
        """Enter into the profile how many steps the call has, or its plan."""
        if self.call is not None:
            self.call.steps = self.call.steps if steps is None else steps
            self.call.plan = self.call.plan if plan is None else plan

    def new_run(
        self, backend: Backend, state: Any, steps: int | None, determinism: DeterminismCheck | None, total: int | None
    ) -> Interpreter:
        """A run from that state, which the profile records."""
        memory = self.memory if self.plan is None else self.plan.memory
        recorder = None if self.call is None else self.call.recorder(backend, state, memory)
        return Interpreter(
            backend, state, steps, determinism=determinism, progress=self.progress, total=total, recorder=recorder
        )

    def validate(self, steps: int | None) -> None:
        """Raise now what a plan would raise, where no step must be measured for it."""
        if self.memory is None or self.memory.device.capacity is None:
            self.plan_for(steps, _no_measure)

    def plan_for(self, steps: int | None, measure: Callable[[], StepCost]) -> Plan:
        """The plan for a loop of so many steps; `measure` is called if the budget is in bytes."""
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
            if self.memory.device.capacity is None:
                return _planned(Loop(steps), self.memory)
            measured = measure()
            if self.call is not None and steps is not None:
                self.call.plan_in = lambda budget: plan_within(measured, steps, Memory(budget))
            return plan_within(measured, steps, self.memory)


_planned = lru_cache(maxsize=64)(plan)


def _no_measure() -> StepCost:
    raise AssertionError("a budget in slots needs no measuring")


def plan_within(measured: StepCost, steps: int | None, memory: Memory) -> Plan:
    """The plan in what the memory leaves beside what every step allocates while it runs."""
    have = memory.device.capacity
    assert have is not None
    aside = measured.workspace + min(measured.bookkeeping, have // 5)  # a fifth of a small budget
    loop = measured.loop.with_steps(steps)
    # Planning takes some 40 bytes for each step and budget in an exact table, and some 200 for each budget in the
    # search for long loops: it must not dwarf the memory that it plans.
    planner = Auto(most=min(Auto.most, (steps or 0) * have / 100), fine=max(1000, min(Auto.fine, have // 1000)))
    budget = Memory(max(0, have - aside))
    try:
        found = _plan_by_ranges(measured, loop, budget, planner)
        if found is None:
            loop = measured.as_single_steps.with_steps(steps)
            found = _planned(loop, budget, planner=planner)
    except InfeasibleError as error:
        need = error.minimum + measured.workspace
        least = min(-(-need * 5 // 4) + 1, need + measured.bookkeeping)
        raise InfeasibleError(
            f"no plan fits {bytes_text(have)}: the smallest that works is {bytes_text(least, up=True)}. A state takes "
            f"{bytes_text(loop.state, up=True)}, a step's tape {bytes_text(loop.tape, up=True)}; "
            f"{bytes_text(aside, up=True)} are set aside for what a step allocates while it runs and for bookkeeping",
            least,
            "bytes",
        ) from None
    rest = have - (found.memory.device.capacity or 0)
    return found.because(
        f"{found.reason}; {bytes_text(rest)} of {bytes_text(have)} are set aside for what a step allocates while it "
        "runs and for bookkeeping"
    )


def _plan_by_ranges(measured: StepCost, loop: Loop, memory: Memory, planner: Auto) -> Plan | None:
    """The plan by what steps add to long ranges, if it holds few at once: each takes some bytes of its own besides.

    How many is known when it is planned: what is missing is taken off the room, and it is planned again.
    """
    room = memory.device.capacity or 0
    budget = room - measured.bytes_per_range
    if loop.steps is None:
        return None
    for _ in range(4):
        try:
            found = _planned(loop, Memory(max(0, budget)), planner=planner)
        except InfeasibleError:
            return None
        need, peak = _peak_with_overheads(found, measured)
        if peak > PEAK_TOLERANCE * found.peak:
            return None
        if need <= room:
            return found
        budget = found.peak - (need - room)
    return None


def _peak_with_overheads(plan: Plan, measured: StepCost) -> tuple[int, int]:
    """The most bytes that a plan takes if each range has some of its own; the same without what is passing."""
    machine = Machine(plan.problem)
    most = peak = held = 0
    for op in plan.schedule:
        machine.apply(op)
        held += isinstance(op, Record)
        live = machine.device_size + held * measured.bytes_per_range
        peak = max(peak, live)
        if isinstance(op, Pullback):
            live += (op.stop - op.start) * measured.pullback_workspace
            held -= 1
        most = max(most, live)
    return most, peak


def _fraction_of_free(fraction: float, free_bytes: Callable[[], int | None] | None) -> int:
    """So much of the memory that is free on the device, or on this machine."""
    if not 0.0 < fraction <= 1.0:
        raise ProblemError(f"memory={fraction!r}: a fraction of what is free lies between 0 and 1")
    there = None if free_bytes is None else free_bytes()
    there = free_host_bytes() if there is None else there
    if there is None:
        raise ProblemError("this system does not say how much memory is free: give memory= in bytes")
    return int(there * fraction)


def free_host_bytes() -> int | None:
    """Bytes that are free on this machine, or None if it does not say."""
    import os

    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
