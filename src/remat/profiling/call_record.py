"""The record of one remat call in a profile: its call site, its plan, and every run of its schedule.

The interface reports the call, and one `TraceRecorder` observes each run. The record gives the rows of the profile's
table, and plain data to save.
"""

from dataclasses import asdict, fields
from math import isfinite
from typing import Any

from remat.errors import FileError
from remat.execute.backend_protocol import ObservableBackend
from remat.measuring import StepCost
from remat.planners.plan import Plan
from remat.problem import Memory
from remat.profiling.segment_contents import SegmentContents
from remat.profiling.source_location import SourceLocation
from remat.profiling.tape_contents import TapeContents, TapeListing
from remat.profiling.trace_recorder import ActiveMeters, TraceRecorder
from remat.schedule import Trace
from remat.schedule.events import Totals

__all__ = ["CallRecord", "SavedPlan", "SavedRun"]


class CallRecord:
    """One call: its `plan`, if it was differentiated, and its `runs`, one for each first sweep that was started."""

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
        self.traced = traced  # whether the events of its runs are stored, or only their totals
        self.meters = meters  # None: allocated bytes are not measured
        self.framework = ""
        self.steps: int | None = None
        self.budget: int | None = (
            None  # bytes as the user gave them; the plan has less, since workspace and bookkeeping are subtracted
        )
        self.plan: Plan | SavedPlan | None = None
        self.step_cost: StepCost | None = None  # set if the budget is in bytes; not saved
        self.runs: list[TraceRecorder | SavedRun] = []
        self.seconds = 0.0  # of the call itself (measuring, planning, the first sweep), without reverse sweeps
        self.stopped = ""  # the class name of the error that ended the call
        self.contents: SegmentContents | None = None  # what a segment keeps and drops, if known
        self._tape: TapeContents | None = None

    def begin_segment(self, framework: str) -> None:
        """Set the framework of a segment, and start counting its runs."""
        self.framework, self.steps = framework, 0

    def note_contents(self, contents: SegmentContents) -> None:
        """Store what the segment keeps and drops."""
        self.contents = contents

    def count_run(self) -> None:
        """Count a run of a segment: its first run, or a recomputation."""
        self.steps = (self.steps or 0) + 1

    def note_tape(self, contents: TapeContents) -> None:
        """Store what is inside the tape of a step, if no run will show it."""
        self._tape = contents

    @property
    def tape(self) -> TapeContents | None:
        """What is inside the tape of a step, if known."""
        return next((run.tape for run in self.runs if run.tape is not None), self._tape)

    def recorder(
        self,
        backend: ObservableBackend,
        state: Any,
        memory: Memory | None = None,
        *,
        restartable: bool = False,
        listing: TapeListing | None = None,
    ) -> TraceRecorder:
        """Add a run and return its recorder; the first run lists a tape."""
        listing = None if self.runs else listing
        run = TraceRecorder(
            backend,
            state,
            memory=memory,
            restartable=restartable,
            traced=self.traced,
            meters=self.meters,
            listing=listing,
        )
        self.runs.append(run)
        return run

    @property
    def trace(self) -> Trace | None:
        """The trace of the last run, so far if it has not ended; None without runs."""
        return self.runs[-1].trace if self.runs else None

    @property
    def total_seconds(self) -> float:
        """Seconds of the call and of the reverse sweeps of its runs."""
        return self.seconds + sum(run.backward_seconds for run in self.runs)

    @property
    def compiled(self) -> bool:
        """Whether it was planned but never seen to run: it is part of a compiled program (jax.jit)."""
        return self.plan is not None and not self.runs and not self.stopped

    @property
    def status(self) -> str:
        """How the call ended, as short text."""
        stopped = self.stopped or next((run.stopped for run in self.runs if run.stopped), "")
        if stopped:
            return f"stopped by {stopped}"
        if self.compiled:
            return "compiled, and not seen to run"
        if not self.runs:
            return "no gradient"
        return "done" if self.runs[-1].complete else "forward only"

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data: the totals of all runs, and the events of the last one."""
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
            "contents": None if self.contents is None else self.contents.to_dict(),
            "tape": None if self.tape is None else self.tape.to_dict(),
            "plan": None if self.plan is None else self.plan.summary(),
            "runs": [
                {
                    "totals": asdict(run.totals),
                    "peak": run.peak,
                    "later": run.backward_seconds,  # a key of the file format
                    "complete": run.complete,
                    "stopped": run.stopped,
                }
                for run in self.runs
            ],
            "trace": None if trace is None else trace.envelope(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CallRecord":
        """The record from plain data."""
        step, plan, trace = data["step"], data["plan"], data["trace"]
        call = cls(
            str(data["what"]),
            SourceLocation.from_dict(data["site"]),
            None if step is None else SourceLocation.from_dict(step),
        )
        call.framework, call.stopped, call.traced = str(data["framework"]), str(data["stopped"]), trace is not None
        call.steps, call.budget = _as_count(data["steps"]), _as_count(data["budget"])
        call.seconds = _as_seconds(data["seconds"])
        call.plan = None if plan is None else SavedPlan(plan)
        contents = data.get("contents")
        call.contents = None if contents is None else SegmentContents.from_dict(contents)
        tape = data.get("tape")
        call._tape = None if tape is None else TapeContents.from_dict(tape)
        runs = [SavedRun(run) for run in data["runs"]]
        if trace is not None and runs:
            runs[-1].trace = Trace.from_envelope(trace)
        call.runs = [*runs]
        return call


class SavedRun:
    """A run from a file: its totals, and its trace if saved. It replaces a `TraceRecorder`."""

    tape: TapeContents | None = None  # stored in the call

    def __init__(self, data: dict[str, Any]) -> None:
        names = {field.name for field in fields(Totals)}  # a file of a later version may have more
        self.totals = Totals(**{name: value for name, value in data["totals"].items() if name in names})
        self.peak = _as_count(data["peak"]) or 0
        self.backward_seconds = _as_seconds(data["later"])
        self.complete, self.stopped = bool(data["complete"]), str(data["stopped"])
        for name in ("advances", "records", "ops"):
            _as_count(getattr(self.totals, name))  # raises if the file is damaged
        self.trace = Trace(0, "ram", self.totals, (), lambda _: (), measured=True, complete=self.complete)


class SavedPlan:
    """The summary of a plan from a file. It replaces a `Plan`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.planner, self.claim = str(data["planner"]), str(data["claimed"])
        cost = data["prediction"]
        advances, records, _ = (_as_count(cost[name]) or 0 for name in ("advances", "records", "peak"))
        self.forward_steps = advances + records
        _as_seconds(cost["seconds"])  # this and the next line raise if the file is damaged
        Memory.from_envelope(data["memory"])

    def summary(self) -> dict[str, Any]:
        """The summary as plain data, as it was saved."""
        return self.data


def _as_count(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value < 2**62):
        raise FileError(f"the saved profile is damaged: {str(value)[:40]!r} is no whole number it can have")
    return value


def _as_seconds(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise FileError(f"the saved profile is damaged: {str(value)[:40]!r} is no time")
    return float(value)
