"""The `Loop` of a measured trace: the mean sizes and times of a step."""

from remat.problem import Loop
from remat.schedule import Advance, Pullback, Record, Trace
from remat.schedule.events import TapeSizes

__all__ = ["loop_of"]


def loop_of(trace: Trace, steps: int | None = None) -> Loop | None:
    """The loop of a run as a problem for the planners, optionally with another number of steps.

    None if no step was recorded.
    """
    sums = dict.fromkeys((Advance, Record, Pullback), (0, 0.0))
    tapes, tape_bytes, first_live = TapeSizes(), 0, 0
    for event in trace:
        first_live = first_live or event.live.state.get(trace.device, 0)
        op = event.op
        if isinstance(op, Advance | Record | Pullback):
            units, seconds = sums[type(op)]
            sums[type(op)] = units + op.stop - op.start, seconds + event.seconds
        own = tapes.own(event)
        tape_bytes += own if isinstance(op, Record) else 0
    recorded, keeps = sums[Record][0], sum(trace.keeps.values())
    if not recorded:
        return None
    # If no state was kept: the first op has two states live, its input and its output.
    state = sum(trace.totals.written.values()) // keeps if keeps else first_live // 2
    forward, record, backward = (seconds / max(1, units) for units, seconds in sums.values())
    forward = forward or record  # a run that only recorded has no other time for a forward step
    units = trace.problem_units if steps is None else steps
    return Loop(units, max(1, state), tape_bytes // recorded, forward, record, backward)
