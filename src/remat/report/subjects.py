"""What a report is about: plans, traces, calls and whole profiles, each made into subjects with a trace and a name.

In: what the user gives. Out: subjects; where something was both planned and run, the simulation of the plan beside the
measured trace, op for op.
"""

from dataclasses import dataclass, replace
from typing import Any

from remat.errors import ReportError
from remat.execute import Call, Profile
from remat.execute.calls import Past
from remat.measure import loop_of
from remat.planners import Plan, Prediction
from remat.problem import Level, Memory
from remat.schedule import Schedule, Trace, simulate
from remat.units import count_text

__all__ = ["Subject", "subjects_of"]

MOST_SITES = 8  # call sites of a profile that a report shows


@dataclass(frozen=True)
class Subject:
    """One run, planned or done: its trace, the plan it follows, and the simulation that it can be compared with."""

    label: str
    trace: Trace
    plan: Plan | None = None
    predicted: Trace | None = None
    sized: Plan | None = None  # the plan, or where it was made in slots the same with the sizes that were measured
    asked: int | None = None  # bytes that the caller asked for, where the plan has less
    source: str = ""  # where the step is written
    framework: str = ""
    notes: tuple[str, ...] = ()


def subjects_of(value: Any, label: str = "") -> list[Subject]:
    """The subjects in something to be shown; anything else raises a ReportError."""
    if isinstance(value, Plan):
        value.schedule  # noqa: B018 (a plan for an unknown length has none, and says what to do)
        return [Subject(label or _plan_label(value), value.simulate(), value, sized=value)]
    if isinstance(value, Trace):
        return [Subject(label or ("measured run" if value.measured else "simulated run"), value)]
    if isinstance(value, Call):
        return [_of_call(value, label)]
    if isinstance(value, Profile):
        return _of_profile(value, label)
    raise ReportError(
        f"a report is about a Plan, a Trace, a Profile or one of its calls, not {value!r:.60}; give the path last"
    )


def _plan_label(plan: Plan) -> str:
    return f"{plan.planner} plan, {count_text(plan.problem.units)} steps in {plan.memory}"


def _of_profile(profile: Profile, label: str) -> list[Subject]:
    """The call with the largest peak of each call site, the sites with the largest peaks first."""
    best: list[tuple[Call, int, int]] = []
    for calls in profile.sites().values():
        shown = [call for call in calls if call.trace is not None and call.traced]
        if shown:
            call = max(shown, key=lambda call: call.trace.peak if call.trace else 0)
            best.append((call, calls.index(call), len(calls)))
    if not best:
        raise ReportError(
            "the profile has no run to show: no gradient was computed in it. Call the gradient inside the block"
        )
    best.sort(key=lambda entry: -entry[0].runs[-1].peak)
    left = f"{len(best) - MOST_SITES} more call sites are not shown" if len(best) > MOST_SITES else ""
    subjects = []
    for call, number, count in best[:MOST_SITES]:
        subject = _of_call(call, label)
        which = (f"call {number + 1} of {count} there, the one with the largest peak",) if count > 1 else ()
        subjects.append(replace(subject, notes=(*subject.notes, *which, *([left] if left else []))))
    return subjects


def _of_call(call: Call, label: str) -> Subject:
    trace = call.trace
    if trace is None:
        raise ReportError("the call has no run to show: no gradient of it was computed")
    plan = _plan_of(call, trace)
    notes = () if call.status == "done" else (f"the run is not complete: {call.status}",)
    sized, how = (None, "") if plan is None else _sized(plan, trace)
    return Subject(
        label or f"{call.what} at {call.site}",
        trace,
        plan,
        None if sized is None else sized.simulate(),
        sized,
        call.budget,
        "" if call.step is None else str(call.step),
        call.framework,
        (*notes, *([how] if how else [])),
    )


def _plan_of(call: Call, trace: Trace) -> Plan | None:
    """The plan; one from a file has its ops from the trace, if that is complete."""
    if call.plan is None or isinstance(call.plan, Plan):
        return call.plan
    if not trace.complete or not isinstance(call.runs[-1], Past):
        return None
    return Plan.from_summary(call.plan.summary(), Schedule(event.op for event in trace))


def _sized(plan: Plan, trace: Trace) -> tuple[Plan | None, str]:
    """The plan with sizes and times; one made in slots knows none, and takes those that were measured."""
    if plan.source is None or len(plan.memory.levels) > 1:
        return None, ""
    if plan.memory.device.capacity is not None:
        return plan, ""
    loop = loop_of(trace, plan.problem.steps)
    if loop is None:
        return None, ""
    cost = Prediction.of(simulate(plan.schedule, loop, plan.memory))
    note = "the plan was made in slots, so the prediction takes the sizes and times of a step from this run"
    level = Level(plan.memory.device.name, cost.peak)
    return replace(plan, problem=loop, memory=Memory(levels=[level]), prediction=cost), note
