"""One remat call as a profile holds it: where it was made, its plan, and every run of its schedule.

In: from the interface, and a recorder for each run. Out: the numbers of the profile's table; as plain data, a file.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

from remat.execute.recorder import Recorder
from remat.execute.sites import Site
from remat.execute.verbs import Verbs
from remat.problem import Memory
from remat.schedule import Trace

__all__ = ["Call", "Past", "Planned"]


class Planned(Protocol):
    """What a profile says of a plan."""

    @property
    def planner(self) -> str:
        """Who made it."""
        ...

    @property
    def claim(self) -> Any:
        """What is proved of it."""
        ...

    @property
    def forward_steps(self) -> int:
        """Steps that it runs in all."""
        ...

    @property
    def memory(self) -> Memory:
        """What it was made for."""
        ...

    def summary(self) -> dict[str, Any]:
        """It as plain data, without its ops."""
        ...


class Call:
    """One call: `plan` if a gradient was asked for, and `runs`, one for each reverse sweep that was begun."""

    def __init__(
        self, what: str, site: Site, step: Site | None = None, *, traced: bool = True, meters: ExitStack | None = None
    ) -> None:
        self.what, self.site, self.step = what, site, step
        self.traced = traced  # whether events are held, or totals only
        self.meters = meters  # holds meters that are on; None: the allocator is not asked
        self.framework = ""
        self.steps: int | None = None
        self.budget: int | None = None  # bytes that were asked for; the plan has what is left beside what is set aside
        self.plan: Planned | None = None
        self.runs: list[Recorder | Past] = []
        self.seconds = 0.0  # of the call itself: measuring, planning, the first sweep
        self.stopped = ""  # the name of the error that ended the call

    def recorder(self, verbs: Verbs, state: Any) -> "Recorder":
        """The recorder of a new run."""
        run = Recorder(verbs, state, traced=self.traced, meters=self.meters)
        self.runs.append(run)
        return run

    @property
    def trace(self) -> Trace | None:
        """The trace of the last run, of what happened so far if it has not ended; None where there is no run."""
        if not self.runs:
            return None
        return replace(self.runs[-1].trace, memory=None if self.plan is None else self.plan.memory)

    @property
    def all_seconds(self) -> float:
        """The time of the call, and of what its runs did later: the reverse sweeps."""
        return self.seconds + sum(run.later for run in self.runs)

    @property
    def status(self) -> str:
        """How it ended, in a word or two."""
        stopped = self.stopped or next((run.stopped for run in self.runs if run.stopped), "")
        if stopped:
            return f"stopped by {stopped}"
        if not self.runs:
            return "no gradient"
        return "done" if self.runs[-1].complete else "forward only"

    def to_dict(self) -> dict[str, Any]:
        """The call as plain data."""
        trace = self.trace
        return {
            "what": self.what,
            "site": self.site.to_dict(),
            "step": None if self.step is None else self.step.to_dict(),
            "framework": self.framework,
            "steps": self.steps,
            "budget": self.budget,
            "seconds": self.seconds,
            "later": sum(run.later for run in self.runs),
            "stopped": self.stopped or next((run.stopped for run in self.runs if run.stopped), ""),
            "plan": None if self.plan is None else self.plan.summary(),
            "trace": None if trace is None else trace.envelope(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Call":
        """The call from plain data; of several runs only the last was saved."""
        step, plan, trace = data["step"], data["plan"], data["trace"]
        call = cls(str(data["what"]), Site.from_dict(data["site"]), None if step is None else Site.from_dict(step))
        call.framework, call.stopped = str(data["framework"]), str(data["stopped"])
        call.steps = None if data["steps"] is None else int(data["steps"])
        call.budget = None if data["budget"] is None else int(data["budget"])
        call.seconds = float(data["seconds"])
        call.plan = None if plan is None else _Told(plan)
        if trace is not None:
            call.runs.append(Past(Trace.from_envelope(trace), float(data["later"])))
        return call


class Past:
    """A run that was saved and loaded."""

    stopped = ""

    def __init__(self, trace: Trace, later: float) -> None:
        self.trace, self.later, self.totals = trace, later, trace.totals
        self.peak, self.complete = trace.peak, trace.complete


class _Told:
    """A plan as a saved profile tells of it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.planner, self.claim = str(data["planner"]), str(data["claimed"])
        self.forward_steps = int(data["prediction"]["advances"]) + int(data["prediction"]["records"])
        self.memory = Memory.from_envelope(data["memory"])

    def summary(self) -> dict[str, Any]:
        return self.data
