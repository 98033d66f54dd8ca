"""A loop as a real run showed it: the mean sizes and times of a step, from a measured trace."""

from remat.problem import Loop
from remat.schedule import Advance, Pullback, Record, Trace
from remat.schedule.events import TapeSizes

__all__ = ["loop_of"]


def loop_of(trace: Trace, steps: int | None = None) -> Loop | None:
    """The loop that a run went through, or None if it had recorded no step yet."""
    sums = dict.fromkeys((Advance, Record, Pullback), (0, 0.0))
    tapes, tape, first = TapeSizes(), 0, 0
    for event in trace:
        first = first or event.live.state.get(trace.device, 0)
        op = event.op
        if isinstance(op, Advance | Record | Pullback):
            units, seconds = sums[type(op)]
            sums[type(op)] = units + op.stop - op.start, seconds + event.seconds
        own = tapes.own(event)
        tape += own if isinstance(op, Record) else 0
    recorded, keeps = sums[Record][0], sum(trace.keeps.values())
    if not recorded:
        return None
    # Without kept states: the first op has its input and output live.
    state = sum(trace.totals.written.values()) // keeps if keeps else first // 2
    forward, record, back = (sums[kind][1] / max(1, sums[kind][0]) for kind in (Advance, Record, Pullback))
    forward = forward or record
    return Loop(trace.problem_units if steps is None else steps, max(1, state), tape // recorded, forward, record, back)
