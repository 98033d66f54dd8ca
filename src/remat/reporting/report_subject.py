"""What a report is about: plans, traces, calls and profiles become subjects, each with a trace and a label.

A subject that was planned and run has both the simulation of its plan and the measured trace, with the same ops.
"""

from dataclasses import dataclass, replace
from typing import Any

from remat.errors import FileError, ReportError
from remat.measuring import StepCost, loop_of
from remat.planners import Plan, Prediction
from remat.problem import Level, Loop, Memory
from remat.profiling import CallRecord, Profile
from remat.profiling.call_record import SavedRun
from remat.profiling.tape_contents import TapeContents
from remat.schedule import Schedule, Trace, simulate, verify
from remat.units import count_text

__all__ = ["ReportSubject", "plan_bytes_of", "requested_bytes_of", "subjects_of"]

MOST_SITES = 6  # the most call sites of a profile to show
SEGMENT_CALLS = ("checkpoint", "drop", "chain")


@dataclass(frozen=True)
class ReportSubject:
    """One plan or run: its trace, the plan that it follows, and the simulation to compare it with."""

    label: str
    trace: Trace
    plan: Plan | None = None
    predicted: Trace | None = None
    sized: Plan | None = None  # the plan; if it was made in slots, with the measured sizes of states and tapes
    step_cost: StepCost | None = None  # measured before the run was planned; None if loaded from a file
    requested_bytes: int | None = None  # the caller's budget; the plan's own may be less
    limit: int | None = None  # bytes that charts mark, even if the subject had no budget
    source: str = ""  # where the step function is defined
    framework: str = ""
    tape: TapeContents | None = None  # what is inside the tape of a step, if a profile recorded it
    warning: str = ""  # shown above everything else
    notes: tuple[str, ...] = ()


def plan_bytes_of(subject: ReportSubject) -> int | None:
    """The plan's own budget for states and tapes, if it is in bytes."""
    memory = subject.plan.memory if subject.plan else subject.trace.memory
    return None if memory is None else memory.device.capacity


def requested_bytes_of(subject: ReportSubject) -> int | None:
    """The caller's budget in bytes; the plan gets what a step's workspace and bookkeeping leave of it."""
    return plan_bytes_of(subject) if subject.requested_bytes is None else subject.requested_bytes


def subjects_of(value: Any, label: str = "") -> list[ReportSubject]:
    """The subjects of a plan, trace, call or profile; raise a ReportError for anything else."""
    if isinstance(value, Plan):
        value.schedule  # noqa: B018 (raises for a plan of unknown length, and says what to do)
        return [ReportSubject(label or _plan_label(value), value.simulate(), value, sized=value)]
    if isinstance(value, Trace):
        return [ReportSubject(label or ("measured run" if value.measured else "simulated run"), value)]
    if isinstance(value, CallRecord):
        return [_of_call(value, label)]
    if isinstance(value, Profile):
        return _of_profile(value, label)
    raise ReportError(
        f"a report is about a Plan, a Trace, a Profile or one of its calls, not {value!r:.60}; give the path last"
    )


def _plan_label(plan: Plan) -> str:
    return f"{plan.planner} plan, {plan.problem.title} in {plan.memory}"


def _of_profile(profile: Profile, label: str) -> list[ReportSubject]:
    """For each call site and number of steps, the call with the largest peak; largest peaks first.

    A profile with only segments has no subjects: passes over segments have an order and seconds, but no events to draw.
    """
    best: list[tuple[CallRecord, int, int]] = []
    for place in profile.places():
        by_steps: dict[int | None, list[CallRecord]] = {}
        for call in place.calls:
            if call.runs and call.traced:
                by_steps.setdefault(call.steps, []).append(call)
        for group in by_steps.values():
            call = max(group, key=lambda call: call.runs[-1].peak)
            best.append((call, group.index(call), len(group)))
    in_segments = any(call.what in SEGMENT_CALLS or call.contents is not None for call in profile.calls)
    if not best and (in_segments or profile.kept or profile.models):
        return []  # there is nothing to draw; the tables of the profile have it all
    compiled = [call for call in profile.calls if call.compiled]
    if not best and compiled and all(isinstance(call.plan, Plan) for call in compiled):
        return [_of_compiled(call, label) for call in compiled[:MOST_SITES]]
    if not best and compiled:
        raise ReportError(
            "the profile has no run to show: its loops ran inside compiled functions, where they cannot be observed. "
            "Show a plan, by run.calls[0].plan.report(...), or give driven=True and call the gradient outside jit"
        )
    if not best:
        raise ReportError(
            "the profile has no run to show: no gradient was computed in it. Call the gradient inside the block"
        )
    best.sort(key=lambda entry: -entry[0].runs[-1].peak)
    omitted = f"{len(best) - MOST_SITES} more kinds of calls are not shown" if len(best) > MOST_SITES else ""
    subjects = []
    for call, number, count in best[:MOST_SITES]:
        subject = _of_call(call, label)
        which = f" (call {number + 1} of {count}, the one with the largest peak)" if count > 1 else ""
        notes = (*subject.notes, *([omitted] if omitted else []))
        subjects.append(replace(subject, label=subject.label + which, notes=notes))
    return subjects


def _of_call(call: CallRecord, label: str) -> ReportSubject:
    trace = call.trace
    if trace is None:
        raise ReportError("the call has no run to show: no gradient of it was computed")
    if not call.traced:
        raise ReportError(
            "the events of this call were not stored: only those of the first calls at a place are. Show one of these"
        )
    plan = _plan_of(call, trace)
    sized = None if plan is None else _sized(plan, trace)
    return ReportSubject(
        label or f"{call.what} at {call.site}",
        trace,
        plan,
        sized.simulate() if sized is not None and trace.complete else None,
        sized,
        call.step_cost,
        call.budget,
        None,
        "" if call.step is None else str(call.step),
        call.framework,
        call.tape,
        "" if call.status == "done" else f"The run is not complete: {call.status} after {_ops(trace)}.",
    )


def _of_compiled(call: CallRecord, label: str) -> ReportSubject:
    """The subject for the plan of a loop that was compiled with the rest of a program."""
    [subject] = subjects_of(call.plan, label or f"{call.what} at {call.site}")
    return replace(
        subject,
        requested_bytes=call.budget,
        source="" if call.step is None else str(call.step),
        framework=call.framework,
        tape=call.tape,
        warning="This loop is compiled with the rest of the program (jax.jit), so nobody sees it run: what is shown is "
        "its plan, and times are the planner's estimates. driven=True, outside of jit, shows a run.",
    )


def _ops(trace: Trace) -> str:
    return f"{count_text(trace.totals.ops)} op{'s' * (trace.totals.ops != 1)}"


def _plan_of(call: CallRecord, trace: Trace) -> Plan | None:
    """The plan of a call; if loaded from a file, it takes its ops from the trace, if that is complete."""
    if call.plan is None or isinstance(call.plan, Plan):
        return call.plan
    if not trace.complete or not isinstance(call.runs[-1], SavedRun):
        return None
    try:
        plan = Plan.from_summary(call.plan.summary(), Schedule(event.op for event in trace))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"the plan of a call in the saved profile is damaged: {error}") from error
    verdict = verify(plan.schedule, plan.problem, Memory(levels=[Level(plan.memory.device.name)]))
    if not verdict:
        raise FileError(f"the ops of a call in the saved profile are damaged: {verdict}")
    return plan


def _sized(plan: Plan, trace: Trace) -> Plan | None:
    """The plan with sizes and times; a plan made in slots has none and gets the measured ones."""
    if plan.source is None or len(plan.memory.levels) > 1:
        return None
    if plan.memory.device.capacity is not None:
        return plan
    loop = loop_of(trace, plan.problem.steps) if isinstance(plan.problem, Loop) else None
    if loop is None:
        return None
    return replace(plan, problem=loop, prediction=Prediction.of(simulate(plan.schedule, loop, plan.memory)))
