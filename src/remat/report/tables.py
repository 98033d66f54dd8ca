"""Tables: who is live at the peak, predicted and measured, and the rest, as rows of text for every form of report."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat.units import bytes_text, count_text

if TYPE_CHECKING:
    from remat.report.summary import Summary

__all__ = ["Table", "compare", "tables_of"]

MOST_HOLDERS = 12
MOST_RUNS = 20  # rows of the table of how often steps run


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; columns of numbers are set to the right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables_of(summary: "Summary") -> tuple[Table, ...]:
    """The tables that have rows, in the order of their use."""
    makers = (_holders, _predicted, _runs, _moved, _always, _plan)
    found = (make(summary) for make in makers)
    return tuple(table for table in found if table is not None and table.rows)


def compare(summaries: "list[Summary]") -> Table:
    """Several subjects side by side; ratios are to the first."""
    traces = [summary.subject.trace for summary in summaries]

    def row(name: str, texts: list[str], values: list[float]) -> tuple[str, ...]:
        ratios = [f"{text} ({_ratio(value, values[0])})" for text, value in zip(texts[1:], values[1:], strict=True)]
        return (name, texts[0], *ratios)

    rows = [
        row("peak", [bytes_text(t.peak) for t in traces], [t.peak for t in traces]),
        row("forward steps", [count_text(t.forward_steps) for t in traces], [t.forward_steps for t in traces]),
        ("recomputed", *(count_text(trace.recomputed) for trace in traces)),
    ]
    if len({trace.measured for trace in traces}) == 1:
        rows.append(row("time", [s.time(s.subject.trace.seconds) for s in summaries], [t.seconds for t in traces]))
    if all(trace.totals.allocated is not None for trace in traces):
        allocated = [trace.totals.allocated or 0 for trace in traces]
        rows.append(row("allocated", [bytes_text(size) for size in allocated], [float(size) for size in allocated]))
    rows.append(("states kept", *(count_text(sum(trace.keeps.values())) for trace in traces)))
    return Table("Side by side", ("", *(summary.label for summary in summaries)), tuple(rows))


def _holders(summary: "Summary") -> Table:
    """Who is live at the peak, the largest first."""
    trace, peak = summary.subject.trace, max(1, summary.subject.trace.peak)
    live = sorted(trace.at_peak, key=lambda holder: -holder[2])
    source = summary.subject.source
    rows = [
        (what, level, bytes_text(size), f"{size / peak:.1%}" if level == trace.device else "apart")
        for what, level, size in live[:MOST_HOLDERS]
    ]
    if len(live) > MOST_HOLDERS:
        rest = live[MOST_HOLDERS:]
        size = sum(size for _, level, size in rest if level == trace.device)
        rows.append((f"{len(rest)} more", "", bytes_text(size), f"{size / peak:.1%}"))
    note = f"State i is the input of step i, tape i..j what the backward of steps i to j needs. Step: {source}."
    head = ("what", "where", "bytes", "share")
    return Table("Who is live at the peak", head, tuple(rows), note if source else note.partition(" Step:")[0])


def _predicted(summary: "Summary") -> Table | None:
    before, after = summary.subject.predicted, summary.subject.trace
    if before is None:
        return None
    rows = [
        (
            "forward steps",
            count_text(before.forward_steps),
            count_text(after.forward_steps),
            _ratio(after.forward_steps, before.forward_steps),
        ),
        ("peak", bytes_text(before.peak), bytes_text(after.peak), _ratio(after.peak, before.peak)),
        ("time", summary.time(before.seconds), summary.time(after.seconds), _ratio(after.seconds, before.seconds)),
    ]
    return Table("Predicted and measured", ("", "predicted", "measured", "ratio"), tuple(rows))


def _runs(summary: "Summary") -> Table:
    rows = [(count_text(times), count_text(units)) for times, units in summary.timeline.histogram.items()]
    if len(rows) > 20:
        rows = [
            *rows[:19],
            (f"more, up to {rows[-1][0]}", count_text(sum(list(summary.timeline.histogram.values())[19:]))),
        ]
    return Table("How often steps run", ("times run", "steps"), tuple(rows))


def _moved(summary: "Summary") -> Table:
    trace, totals = summary.subject.trace, summary.subject.trace.totals
    rows = [
        (
            level,
            count_text(totals.keeps.get(level, 0)),
            bytes_text(totals.written.get(level, 0)),
            count_text(totals.fetches.get(level, 0)),
            bytes_text(totals.read.get(level, 0)),
            bytes_text(trace.peaks[level]) if level in trace.peaks else "",
        )
        for level in dict.fromkeys((*trace.peaks, *totals.keeps, *totals.fetches))
    ]
    head = ("level", "states kept", "bytes written", "states fetched", "bytes read", "peak")
    return Table("States moved", head, tuple(rows))


def _always(summary: "Summary") -> Table:
    rows = [(name, bytes_text(size)) for name, size in summary.subject.trace.always.items()]
    return Table("Always live, apart from the peak", ("what", "bytes"), tuple(rows))


def _plan(summary: "Summary") -> Table | None:
    plan = summary.subject.plan
    if plan is None:
        return None
    loop = (summary.subject.sized or plan).problem
    rows = [
        ("planner", plan.planner + (f": {plan.reason}" if plan.reason else "")),
        ("claim", str(plan.claim)),
        ("memory", str(plan.memory)),
        ("step", f"state {bytes_text(loop.state)}, tape {bytes_text(loop.tape)}"),
        ("step's times", f"forward {loop.forward:.4g}, record {loop.record:.4g}, backward {loop.backward:.4g}"),
    ]
    return Table("The plan", ("", ""), tuple(rows))


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.3g}x" if base else "-"
