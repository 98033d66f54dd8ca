"""A plan: a schedule, what is proved about it, and what it will cost.

Planners make plans. A plan can be printed, run (`plan.schedule`) and saved (`plan.save`, `Plan.load`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO

from remat.errors import FileError, PlannerError, ScheduleError
from remat.planners.claim import Claim, Prediction
from remat.problem import Graph, Loop, Memory, Problem, load_problem
from remat.problem.serialization import Serializable
from remat.schedule import Op, Schedule, Trace, Verdict, simulate, verify
from remat.schedule.display import Displayable
from remat.schedule.notation import parse_lines
from remat.units import bytes_text, count_text, time_text

__all__ = ["Plan", "ScheduleDriver", "saved_ops"]


class ScheduleDriver(Protocol):
    """Makes the schedule of a loop of unknown length, unit by unit while the loop runs."""

    at: int  # number of units that have run

    def advance(self) -> tuple[Op, ...]:
        """The ops that run the next unit, which is not the last."""
        ...

    def last(self) -> Schedule:
        """The rest of the schedule, if the next unit is the last."""
        ...

    def ended(self) -> Schedule:
        """The rest of the schedule, if there is no next unit."""
        ...

    def withdrawn(self) -> Iterable[Op]:
        """The rest of the schedule, if the unit of the last `advance()` ended the loop and does not count."""
        ...

    def plan(self) -> "Plan":
        """The whole plan, once the loop has ended."""
        ...


@dataclass(frozen=True)
class Plan(Displayable, Serializable):
    """A schedule for a problem in a memory, with its claim, its predicted cost, and why it was chosen.

    A plan for a loop of unknown length has no schedule yet: `start()` returns a driver that makes it as the loop runs.
    """

    problem: Problem
    memory: Memory
    planner: str
    claim: Claim
    prediction: Prediction | None
    source: Schedule | None = None
    reason: str = ""
    starter: Callable[[], ScheduleDriver] | None = field(default=None, repr=False, compare=False)

    kind: ClassVar[str] = "plan"

    @property
    def schedule(self) -> Schedule:
        """The ops; raise a PlannerError for a loop of unknown length, which has none until it has ended."""
        if self.source is None:
            raise PlannerError("the loop's length is not known yet: run it with plan.start(), then take driver.plan()")
        return self.source

    def start(self) -> ScheduleDriver:
        """A new driver, for a loop of unknown length."""
        if self.starter is None:
            raise PlannerError("this plan's schedule is known: iterate plan.schedule instead of driving it")
        return self.starter()

    @property
    def advances(self) -> int:
        """Units run without a tape."""
        return self.predicted.advances

    @property
    def records(self) -> int:
        """Units run with a tape."""
        return self.predicted.records

    @property
    def forward_steps(self) -> int:
        """Units run in total, including the first sweep."""
        return self.advances + self.records

    @property
    def recomputed(self) -> int:
        """Runs of units after each unit's first."""
        return self.forward_steps - self.problem.units

    @property
    def peak(self) -> int:
        """The most bytes live on the device."""
        return self.predicted.peak

    @property
    def seconds(self) -> float:
        """The predicted time in seconds, or in multiples of a unit's forward time if the problem has no times."""
        return self.predicted.seconds

    @property
    def predicted(self) -> Prediction:
        """The cost; raise a PlannerError for a loop of unknown length, which has none until it has ended."""
        if self.prediction is None:
            raise PlannerError("the cost of a loop of unknown length is known once it has ended: see driver.plan()")
        return self.prediction

    def verify(self) -> Verdict:
        """Whether the schedule is legal in the plan's memory."""
        return verify(self.schedule, self.problem, self.memory)

    def simulate(self) -> Trace:
        """The trace of the schedule: what it costs, op by op."""
        return simulate(self.schedule, self.problem, self.memory)

    def named(self, planner: str) -> "Plan":
        """The same plan under the name of another planner."""
        return replace(self, planner=planner)

    def because(self, reason: str, memory: Memory | None = None) -> "Plan":
        """The same plan with the reason why it was chosen and, if given, the memory it was asked for."""
        return replace(self, reason=reason, memory=memory or self.memory)

    def __str__(self) -> str:
        rows = [
            ("plan", f"{self.problem.title} in {self.memory}"),
            *self.problem.describe(),
            ("planner", self.planner + (f": {self.reason}" if self.reason else "")),
            ("claim", self.claim.long),
        ]
        if self.prediction is not None:
            rows += self._cost_rows()
        return "\n".join(f"{name:<9}{value}" for name, value in rows)

    def _cost_rows(self) -> Iterator[tuple[str, str]]:
        units, unit = self.problem.units, self.problem.unit
        per_unit = f" ({self.forward_steps / units:.2f} a {unit})" if units else ""
        if isinstance(self.problem, Graph):  # operations of a graph are run, not recorded or pulled back
            yield "runs", f"{count_text(self.records)} operations, and {count_text(self.advances)} of them again"
        else:
            yield "forward", f"{count_text(self.forward_steps)} {unit} evaluations{per_unit}"
            yield "", f"= {count_text(self.records)} recorded + {count_text(self.advances)} advanced"
            yield "", f"{count_text(self.recomputed)} of them recomputed"
        counted = isinstance(self.problem, Loop) and not self.problem.sized
        peak = f"{count_text(self.peak)} states and tapes" if counted else bytes_text(self.peak)
        yield "peak", f"{peak} on {self.memory.device.name}"
        least = self.problem.record_time(0, units) + self.problem.pullback_time(0, units)
        ratio = f", {self.seconds / least:.2f} times recording everything once" if least else ""
        what = "" if self.problem.timed else f" (a {unit} forward is 1)"
        yield "time", f"{time_text(self.seconds, unit, timed=self.problem.timed)}{what}{ratio}"

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, its ops as lines of text."""
        return {**self._head(), "ops": list(self.schedule.lines())}

    def summary(self) -> dict[str, Any]:
        """The plan as plain data, without its ops."""
        return {**self._head(), "claimed": str(self.claim)}

    @classmethod
    def from_summary(cls, data: dict[str, Any], schedule: Schedule) -> "Plan":
        """The plan from a summary and separately given ops."""
        problem, memory = load_problem(data["problem"]), Memory.from_envelope(data["memory"])
        claim = Claim(_factor(data["claim"]["factor"]), str(data["claim"]["within"]))
        cost = Prediction(**data["prediction"])
        return cls(problem, memory, str(data["planner"]), claim, cost, schedule, str(data["reason"]))

    def save(self, path: str | Path) -> None:
        """Write the plan to `path` as JSON, one op per line, without holding the ops in memory."""
        self.schedule  # noqa: B018 (raises before the file is touched if there is no schedule)
        with Path(path).open("w", encoding="utf-8") as file:
            self.write(file)

    def write(self, file: TextIO) -> None:
        """Write the plan to an open file as JSON, one op per line, without holding the ops in memory."""
        lines = self.schedule.lines()
        head = json.dumps({"remat": self.kind, "version": self.version, **self._head()}, indent=1)
        file.write(head.removesuffix("\n}") + ',\n "ops": [')
        file.writelines(f"{',' * (i > 0)}\n  {json.dumps(line)}" for i, line in enumerate(lines))
        file.write("\n ]\n}\n")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Plan":
        """The plan from plain data; raise a FileError if its ops are unreadable, illegal or cost something else."""
        saved = cls.from_summary(data, saved_ops(data))
        verdict = saved.verify()
        if not verdict:
            raise FileError(f"the saved plan is damaged: {verdict}")
        cost = Prediction.of(saved.simulate())
        if not saved.predicted.agrees(cost):
            raise FileError(f"the saved plan is damaged: it says {saved.predicted}, and its ops cost {cost}")
        return saved

    def _head(self) -> dict[str, Any]:
        return {
            "planner": self.planner,
            "reason": self.reason,
            "claim": {"factor": self.claim.factor, "within": self.claim.within},
            "prediction": vars(self.predicted),
            "problem": self.problem.envelope(),
            "memory": self.memory.envelope(),
        }


def saved_ops(data: dict[str, Any]) -> Schedule:
    """The schedule in the data of a saved plan; raise a FileError if its ops are unreadable."""
    lines = data.get("ops")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise FileError('the saved plan is damaged: it has no list of lines under "ops"')
    try:
        return Schedule(parse_lines(lines, "op"))
    except ScheduleError as error:
        raise FileError(f"the saved plan is damaged: {error}") from error


def _factor(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value >= 1.0 and isfinite(value)):
        raise FileError(f"the saved plan is damaged: {str(value)[:40]!r} is not a factor over a bound")
    return float(value)
