"""One remat call as a profile holds it: where it was made, its plan, and every run of its schedule.

In: from the interface, and a recorder for each run. Out: the numbers of the profile's table; as plain data, a file.
"""

from dataclasses import asdict, fields
from math import isfinite
from typing import Any

from remat.errors import FileError
from remat.execute.backend_protocol import ObservableBackend
from remat.measuring import StepCost
from remat.planners.plan import Plan
from remat.problem import Memory
from remat.profiling.source_location import SourceLocation
from remat.profiling.trace_recorder import ActiveMeters, TraceRecorder
from remat.schedule import Trace
from remat.schedule.events import Totals

__all__ = ["CallRecord", "SavedPlan", "SavedRun"]


class CallRecord:
    """One call: `plan` if a gradient was asked for, and `runs`, one for each reverse sweep that was begun."""

    def __init__(
        self,
        what: str,
        site: SourceLocation,
        step: SourceLocation | None = None,
        *,
        traced: bool = True,
        meters: ActiveMeters | None = None,
    ) -> None:
        self.what, self.site, self.step = what, site, step
        self.traced = traced  # whether events are held, or totals only
        self.meters = meters  # None: the allocator is not asked
        self.framework = ""
        self.steps: int | None = None
        self.budget: int | None = None  # bytes that were asked for; the plan has what is left beside what is set aside
        self.plan: Plan | SavedPlan | None = None
        self.step_cost: StepCost | None = None  # measured to plan a budget in bytes; a saved profile has none
        self.runs: list[TraceRecorder | SavedRun] = []
        self.seconds = 0.0  # of the call itself: measuring, planning, the first sweep
        self.stopped = ""  # the name of the error that ended the call

    def recorder(
        self, backend: ObservableBackend, state: Any, memory: Memory | None = None, *, restartable: bool = False
    ) -> TraceRecorder:
        """The recorder of a new run."""
        run = TraceRecorder(
            backend, state, memory=memory, restartable=restartable, traced=self.traced, meters=self.meters
        )
        self.runs.append(run)
        return run

    @property
    def trace(self) -> Trace | None:
        """The trace of the last run, of what happened so far if it has not ended; None where there is no run."""
        return self.runs[-1].trace if self.runs else None

    @property
    def total_seconds(self) -> float:
        """The time of the call, and of what its runs did later: the reverse sweeps."""
        return self.seconds + sum(run.backward_seconds for run in self.runs)

    @property
    def compiled(self) -> bool:
        """Whether it was planned and no more was seen of it: it runs inside of a function that a framework compiled."""
        return self.plan is not None and not self.runs and not self.stopped

    @property
    def status(self) -> str:
        """How it ended, in a word or two."""
        stopped = self.stopped or next((run.stopped for run in self.runs if run.stopped), "")
        if stopped:
            return f"stopped by {stopped}"
        if self.compiled:
            return "compiled, and not seen to run"
        if not self.runs:
            return "no gradient"
        return "done" if self.runs[-1].complete else "forward only"

    def to_dict(self) -> dict[str, Any]:
        """The call as plain data: the totals of all runs, and the events of the last."""
        trace = self.trace if self.traced else None
        return {
            "what": self.what,
            "site": self.site.to_dict(),
            "step": None if self.step is None else self.step.to_dict(),
            "framework": self.framework,
            "steps": self.steps,
            "budget": self.budget,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "plan": None if self.plan is None else self.plan.summary(),
            "runs": [
                {
                    "totals": asdict(run.totals),
                    "peak": run.peak,
                    "later": run.backward_seconds,
                    "complete": run.complete,
                    "stopped": run.stopped,
                }
                for run in self.runs
            ],
            "trace": None if trace is None else trace.envelope(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CallRecord":
        """The call from plain data."""
        step, plan, trace = data["step"], data["plan"], data["trace"]
        call = cls(
            str(data["what"]),
            SourceLocation.from_dict(data["site"]),
            None if step is None else SourceLocation.from_dict(step),
        )
        call.framework, call.stopped, call.traced = str(data["framework"]), str(data["stopped"]), trace is not None
        call.steps, call.budget = _whole(data["steps"]), _whole(data["budget"])
        call.seconds = _time(data["seconds"])
        call.plan = None if plan is None else SavedPlan(plan)
        runs = [SavedRun(run) for run in data["runs"]]
        if trace is not None and runs:
            runs[-1].trace = Trace.from_envelope(trace)
        call.runs = [*runs]
        return call


class SavedRun:
    """A run that was saved and loaded: its totals, and its trace if that was saved."""

    def __init__(self, data: dict[str, Any]) -> None:
        known = {field.name for field in fields(Totals)}
        self.totals = Totals(**{name: value for name, value in data["totals"].items() if name in known})
        self.peak = _whole(data["peak"]) or 0
        self.backward_seconds, self.complete, self.stopped = (
            _time(data["later"]),
            bool(data["complete"]),
            str(data["stopped"]),
        )
        for name in ("advances", "records", "ops"):
            _whole(getattr(self.totals, name))
        self.trace = Trace(0, "ram", self.totals, (), lambda _: (), measured=True, complete=self.complete)


class SavedPlan:
    """A plan as a saved profile tells of it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.planner, self.claim = str(data["planner"]), str(data["claimed"])
        cost = data["prediction"]
        advances, records, _ = (_whole(cost[name]) or 0 for name in ("advances", "records", "peak"))
        self.forward_steps = advances + records
        _time(cost["seconds"])
        Memory.from_envelope(data["memory"])  # whether it can be read

    def summary(self) -> dict[str, Any]:
        """The plan as plain data, as it was saved."""
        return self.data


def _whole(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value < 2**62):
        raise FileError(f"the saved profile is damaged: {str(value)[:40]!r} is no whole number it can have")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise FileError(f"the saved profile is damaged: {str(value)[:40]!r} is no time")
    return float(value)
