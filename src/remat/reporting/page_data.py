"""Views: what the scripts of the page draw, as compact plain data.

Each summary becomes a dict with encoded columns, which `page/data.js` decodes.
"""

from typing import Any

from remat.profiling.trace_recorder import MADE_BY_RUN
from remat.reporting.encoding import encode_kept, encode_rows
from remat.reporting.summary import Summary
from remat.reporting.svg_liveness import peak_label
from remat.schedule import Drop, Fetch, Keep

__all__ = ["fit_to_page", "page_view", "top_of"]

COLUMN_BYTES = 290_000  # for the columns of all views of a page
BYTES_PER_VIEW = 40_000  # reserved for the picture and the text of each view after the first
LEAST_COLUMN_BYTES = 12_000  # for the columns of one view, however many views there are


def top_of(summary: Summary) -> int:
    """The most bytes that a chart shows."""
    trace = summary.subject.trace
    sizes = [1, trace.peak, trace.totals.allocated or 0]
    if summary.subject.predicted is not None:
        sizes.append(summary.subject.predicted.peak)
    if summary.limit and summary.limit <= 2 * max(sizes):
        sizes.append(summary.limit)
    return max(sizes)


def fit_to_page(summary: Summary, views: int) -> tuple[Summary, dict[str, Any]]:
    """The summary and its encoded columns; events are grouped until the columns fit into a page."""
    limit = max(LEAST_COLUMN_BYTES, (COLUMN_BYTES - (views - 1) * BYTES_PER_VIEW) / views)
    while True:
        levels = _levels(summary)
        columns = encode_rows(summary.timeline.rows, levels, _predicted(summary))
        if summary.timeline.group > 1:
            columns |= encode_kept(summary.timeline.kept, levels)
        size, rows = sum(len(column["z"]) for column in columns.values()), len(summary.timeline.rows)
        if size <= limit or rows < 1000:
            return summary, columns
        summary = summary.coarser(int(0.95 * rows * limit / size))


def _levels(summary: Summary) -> list[str]:
    timeline = summary.timeline
    moved = (op.level for op in timeline.rows.op if isinstance(op, Keep | Fetch | Drop))
    return list(dict.fromkeys((*moved, *(bar.level for bar in timeline.kept))))


def page_view(summary: Summary, columns: dict[str, Any]) -> dict[str, Any]:
    """One view: its numbers and its encoded columns."""
    timeline, trace, peak = summary.timeline, summary.subject.trace, summary.timeline.peak
    return {
        "label": summary.label,
        "units": trace.problem_units or trace.totals.reached,
        "levels": _levels(summary),
        "timed": trace.timed,
        "unit": summary.unit,
        "otherLevels": list(timeline.rows.elsewhere),
        "events": trace.totals.ops,
        "group": timeline.group,
        "span": timeline.span,
        "top": top_of(summary),
        "budget": summary.limit,
        "limitWord": summary.limit_word,
        "planBytes": summary.plan_bytes,
        "always": sum(trace.always.values()),
        "before": sum(size for name, size in trace.always.items() if name not in MADE_BY_RUN),
        "peak": {
            "row": -1 if peak is None else peak.row,
            "size": trace.peak,
            "kinds": list(timeline.at_peak.values()),
            "text": peak_label(summary),
        },
        "columns": columns,
    }


def _predicted(summary: Summary) -> list[int]:
    """The predicted live bytes of the events that the rows show; empty unless all of them were predicted."""
    predicted, indices = summary.subject.predicted, summary.timeline.rows.index
    if predicted is None:
        return []
    sizes: list[int] = []
    for event in predicted:
        if len(sizes) < len(indices) and event.index == indices[len(sizes)]:
            sizes.append(event.live.total())
    return sizes if len(sizes) == len(indices) else []
