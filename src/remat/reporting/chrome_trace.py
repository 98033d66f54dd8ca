"""The report in the Trace Event Format of Perfetto and chrome://tracing: a track of ops, a counter of live bytes."""

from typing import Any

from remat.reporting.summary import Summary
from remat.reporting.timeline import PHASES
from remat.schedule.notation import format_op

__all__ = ["chrome_of"]

MICRO = 1e6  # times are written in microseconds; a simulated time unit counts as a second


def chrome_of(summaries: list[Summary]) -> dict[str, Any]:
    """The events of all subjects; each subject is shown as one process."""
    events: list[dict[str, Any]] = []
    for process, summary in enumerate(summaries, 1):
        events.append({"ph": "M", "pid": process, "tid": 1, "name": "process_name", "args": {"name": summary.label}})
        events.append({"ph": "M", "pid": process, "tid": 1, "name": "thread_name", "args": {"name": "ops"}})
        rows = summary.timeline.rows
        for row in range(len(rows)):
            start, phase = rows.start[row] * MICRO, PHASES[rows.phase[row]]
            sizes = {"state": rows.state[row], "tape": rows.tape[row], "cotangent": rows.cotangent[row]}
            where = {"pid": process, "tid": 1, "ts": start}
            op = {"index": rows.index[row], "phase": phase, "live bytes": rows.total(row)}
            name = format_op(rows.op[row])
            events.append(
                {"ph": "X", "name": name, "cat": phase, "dur": rows.seconds[row] * MICRO, "args": op, **where}
            )
            events.append({"ph": "C", "name": "live bytes", "args": sizes, **where})
            if rows.allocated:
                events.append(
                    {"ph": "C", "name": "allocated bytes", "args": {"allocated": rows.allocated[row]}, **where}
                )
        if len(rows):
            end = {"pid": process, "tid": 1, "ts": summary.timeline.span * MICRO}
            events.append({"ph": "C", "name": "live bytes", "args": {"state": 0, "tape": 0, "cotangent": 0}, **end})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"written by": "remat"}}
