"""The peak of a plan's nested ranges in a framework that frees a graph only after its whole backward, as autograd does.

The machine (schedule/chain_machine.py) frees a state as soon as no later op needs it. Where a framework does not, the
inputs of the segments of one level stay live until the level's backward has ended: at the top level until the end,
inside a range until that range is pulled back. Segments are ranges that run without a tape, and runs of recorded
stages, whose tapes are dropped as they are pulled back. A state counts once, and F, R, P are the peaks of `Stage`:

    run, first time     held + (x_i unless it is held) + R_i, for each stage; its tape, and the states that the tape
                        holds, are live from then on
    range, first time   held + (x_i unless it is held) + F_i, for each stage
    run, pullback       held + P_i, which counts the stage's tape and the output that it holds, + the cotangent of the
                        run's end, for each stage; then its tape is freed
    range, pullback     held + the cotangent of the range's end + the peak of the level inside it
"""

from collections.abc import Iterator, Sequence

from remat.execute.nested_ranges import Item, Range
from remat.problem import Chain

__all__ = ["retained_peak", "runs"]


def retained_peak(chain: Chain, items: Sequence[Item]) -> int:
    """The most bytes live at once, including the input of the chain."""
    return chain.state_size(0) + _above_input(chain, items) if items else 0


def runs(items: Sequence[Item]) -> Iterator[Range]:
    """The segments of a level: its ranges, and its runs of recorded stages as ranges without items."""
    start: int | None = None
    for item in items:
        if start is None and not isinstance(item, Range):
            start = item
        if isinstance(item, Range):
            if start is not None:
                yield Range(start, item.start, ())
            yield item
            start = None
    if start is not None:
        last = items[-1]
        assert not isinstance(last, Range)
        yield Range(start, last + 1, ())


def _above_input(chain: Chain, items: Sequence[Item]) -> int:
    """The most bytes live at once, not counting the input of the first item, which is held elsewhere."""
    segments = list(runs(items))
    first, kept, peak = segments[0].start, {segment.start for segment in segments}, 0
    tapes: dict[int, int] = {}  # of recorded stages
    done = segments[0].start  # the inputs of segments up to here are live

    def live(*more: int) -> int:
        held = {state for state in kept if state <= done}.union(more)
        for i in tapes:
            option = chain.stages[i].options[0]
            held.update([i] * option.holds_input + [i + 1] * option.holds_output)
        return sum(map(chain.state_size, held)) - chain.state_size(first) + sum(tapes.values())

    for segment in segments:
        done = segment.start
        for i in range(segment.start, segment.stop):
            stage = chain.stages[i]
            peak = max(peak, live(i) + (stage.running_peak if segment.items else stage.record_peak(0)))
            if not segment.items:
                tapes[i] = stage.options[0].tape
    for segment in reversed(segments):
        cotangent = chain.state_size(segment.stop)
        if segment.items:
            peak = max(peak, live() + cotangent + _above_input(chain, segment.items))
        for i in reversed(range(segment.start, segment.stop) if not segment.items else ()):
            del tapes[i]
            held = [i] if chain.stages[i].options[0].holds_input else []
            pulling = chain.stages[i].pullback_peak(0, chain.state_size(i))
            peak = max(peak, live(*held) + pulling + (cotangent if i + 1 < segment.stop else 0))
    return peak
