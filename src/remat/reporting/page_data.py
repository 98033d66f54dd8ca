"""Views: what the scripts of the page draw, as plain data in little room.

In: summaries. Out: a dict for each, with packed columns; `page/data.js` reads it.
"""

from typing import Any

from remat.reporting.encoding import encode_kept, encode_rows
from remat.reporting.summary import Summary
from remat.schedule import Drop, Fetch, Keep
from remat.units import bytes_text

__all__ = ["fit_to_page", "page_view", "top_of"]

ROOM = 290_000  # bytes of a page for the columns of all views
PICTURE = 40_000  # bytes that each further view takes for its picture and its words
MADE = ("outputs", "gradients")  # always live, but made by the run: the allocator has counted them
LEAST = 12_000  # bytes for the columns of a view, however many there are


def top_of(summary: Summary) -> int:
    """The most bytes that a chart shows."""
    trace = summary.subject.trace
    sizes = [1, trace.peak, trace.totals.allocated or 0]
    if summary.subject.predicted is not None:
        sizes.append(summary.subject.predicted.peak)
    if summary.requested_bytes and summary.requested_bytes <= 2 * max(sizes):
        sizes.append(summary.requested_bytes)
    return max(sizes)


def fit_to_page(summary: Summary, views: int) -> tuple[Summary, dict[str, Any]]:
    """The summary and its packed columns, put together in larger groups until they have room in a page."""
    room = max(LEAST, (ROOM - (views - 1) * PICTURE) / views)
    while True:
        levels = _levels(summary)
        columns = encode_rows(summary.timeline.rows, levels, _predicted(summary))
        if summary.timeline.group > 1:
            columns |= encode_kept(summary.timeline.kept, levels)
        size, rows = sum(len(column["z"]) for column in columns.values()), len(summary.timeline.rows)
        if size <= room or rows < 1000:
            return summary, columns
        summary = summary.coarser(int(0.95 * rows * room / size))


def _levels(summary: Summary) -> list[str]:
    timeline = summary.timeline
    moved = (op.level for op in timeline.rows.op if isinstance(op, Keep | Fetch | Drop))
    return list(dict.fromkeys((*moved, *(bar.level for bar in timeline.kept))))


def page_view(summary: Summary, columns: dict[str, Any]) -> dict[str, Any]:
    """One view: its numbers, and its columns as they were packed."""
    timeline, trace, peak = summary.timeline, summary.subject.trace, summary.timeline.peak
    return {
        "label": summary.label,
        "units": trace.problem_units or trace.totals.reached,
        "levels": _levels(summary),
        "measured": trace.measured,
        "events": trace.totals.ops,
        "group": timeline.group,
        "span": timeline.span,
        "top": top_of(summary),
        "budget": summary.requested_bytes,
        "planBytes": summary.plan_bytes,
        "always": sum(trace.always.values()),
        "before": sum(size for name, size in trace.always.items() if name not in MADE),
        "peak": {
            "row": -1 if peak is None else peak.row,
            "size": trace.peak,
            "kinds": list(timeline.at_peak.values()),
            "text": bytes_text(trace.peak),
        },
        "columns": columns,
    }


def _predicted(summary: Summary) -> list[int]:
    """The predicted live bytes of the events that the rows show, if that many were predicted."""
    predicted, wanted = summary.subject.predicted, summary.timeline.rows.index
    if predicted is None:
        return []
    found, place = [], 0
    for event in predicted:
        if place < len(wanted) and event.index == wanted[place]:
            found.append(event.live.total())
            place += 1
    return found if place == len(wanted) else []
