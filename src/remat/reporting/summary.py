"""The summary of a subject: the numbers that a report shows, computed once for all formats.

It has the subject's timeline, tips, and memory curve if one was computed. `cards.py` and `tables.py` put them into
words; page, text and JSON only lay them out.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from remat.planners.memory_curve import MemoryCurve
from remat.problem import Loop
from remat.reporting.report_subject import ReportSubject, plan_bytes_of, requested_bytes_of
from remat.reporting.timeline import Timeline
from remat.reporting.tips import tips_for
from remat.schedule.notation import format_op
from remat.units import count_text, time_text

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Everything that a report shows about one subject."""

    subject: ReportSubject
    timeline: Timeline
    curve: MemoryCurve | None  # what other budgets would cost, if that was computed
    tips: tuple[str, ...]

    @property
    def label(self) -> str:
        """The name of the subject."""
        return self.subject.label

    @property
    def unit(self) -> str:
        """The word for one unit: "step", or "stage" for a chain."""
        return "step" if self.subject.plan is None else self.subject.plan.problem.unit

    def in_units(self, text: str) -> str:
        """A text with "step" replaced by the subject's word for a unit."""
        return text if self.unit == "step" else re.sub(r"\bstep(?=s?\b)", self.unit, text)

    @property
    def plan_bytes(self) -> int | None:
        """The plan's own budget for states and tapes, if it is in bytes."""
        return plan_bytes_of(self.subject)

    @property
    def requested_bytes(self) -> int | None:
        """The caller's budget in bytes; the plan gets what a step's workspace and bookkeeping leave of it."""
        return requested_bytes_of(self.subject)

    @property
    def limit(self) -> int | None:
        """The bytes that charts mark: the subject's budget, or the limit of a comparison."""
        return self.requested_bytes if self.subject.limit is None else self.subject.limit

    @property
    def limit_word(self) -> str:
        """The word for the marked bytes: "budget", or "limit" in a comparison."""
        return "budget" if self.subject.limit is None else "limit"

    @property
    def extra(self) -> float:
        """The fraction of the time that would be saved if every tape fitted into memory.

        Every step is recorded once in any case; advancing and moving states are extra.
        """
        total = sum(self.timeline.seconds.values())
        return (self.timeline.advancing + self.timeline.seconds["move"]) / total if total else 0.0

    @property
    def extra_text(self) -> str:
        """The extra time as text."""
        return f"this takes {self.extra:.0%} of the time" if self.timeline.span else "no times are known"

    @property
    def notes(self) -> tuple[str, ...]:
        """How to read the report: what was grouped, measured or simulated."""
        notes = list(self.subject.notes)
        if self.timeline.group > 1:
            notes.append(
                f"{count_text(self.subject.trace.totals.ops)} events are drawn in groups of {self.timeline.group}; "
                "each group shows its moment of most live bytes, so no peak is lost"
            )
        if self.subject.trace.totals.allocated is not None:
            notes.append("the allocator was asked around every op, which takes time: without that the run is faster")
        if not self.subject.trace.measured:
            notes.append("simulated: sizes and times are those of the problem")
            if not self.subject.trace.timed:
                notes.append("no times were given: the forward of a step counts 1, its backward 2")
            loop = self.subject.plan and self.subject.plan.problem
            if isinstance(loop, Loop) and (loop.state, loop.tape) == (1, 1):
                notes.append("no sizes were given, so a state and a step's tape count one byte each")
        return tuple(map(self.in_units, notes))

    def coarser(self, most: int) -> "Summary":
        """The same summary with a timeline of at most `most` rows."""
        return replace(self, timeline=Timeline.of(self.subject.trace, most))

    def time(self, value: float) -> str:
        """A time as text."""
        return time_text(value, self.unit, timed=self.subject.trace.timed)

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain data, with the rows of its timeline."""
        trace, rows, peak = self.subject.trace, self.timeline.rows, self.timeline.peak
        return {
            "label": self.label,
            "measured": trace.measured,
            "complete": trace.complete,
            "units": trace.problem_units,
            "device": trace.device,
            "budget": self.requested_bytes,
            "peak": trace.peak,
            "peak_at": None
            if peak is None
            else {"op": format_op(peak.op), "index": peak.index, "time": peak.time, "phase": peak.phase},
            "allocated": trace.totals.allocated,
            "at_peak": [{"what": what, "level": level, "bytes": size} for what, level, size in trace.at_peak],
            "always": dict(trace.always),
            "forward_steps": trace.forward_steps,
            "recomputed": trace.recomputed,
            "seconds": trace.seconds,
            "phases": self.timeline.seconds,
            "runs": {str(times): units for times, units in self.timeline.histogram.items()},
            "written": dict(trace.totals.written),
            "read": dict(trace.totals.read),
            "tradeoff": None if self.curve is None else self.curve.to_dict(),
            "tips": list(self.tips),
            "notes": list(self.notes),
            "events": trace.totals.ops,
            "group": self.timeline.group,
            "rows": {
                "op": [format_op(op) for op in rows.op],
                "phase": rows.phase,
                "start": rows.start,
                "seconds": rows.seconds,
                "state": rows.state,
                "tape": rows.tape,
                "cotangent": rows.cotangent,
                "allocated": rows.allocated,
                "elsewhere": rows.elsewhere,
            },
        }


def summarise(subject: ReportSubject, curve: MemoryCurve | None = None) -> Summary:
    """The summary of a subject, with its memory curve if one was computed; nothing is planned here."""
    summary = Summary(subject, Timeline.of(subject.trace), curve, ())
    return replace(summary, tips=tuple(map(summary.in_units, tips_for(subject, curve))))
