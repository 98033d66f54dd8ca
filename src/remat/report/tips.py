"""Tips: what the numbers of a report mean for the one who chose the budget, in words."""

from remat.planners import Plan
from remat.report.subjects import Subject
from remat.report.timeline import Timeline
from remat.report.tradeoff import Tradeoff, TradeoffPoint
from remat.units import bytes_text, count_text

__all__ = ["tips_for"]

WORTH = 0.25  # the share of the recomputation that is worth a word
CHEAP = 0.05  # more forward steps that nobody minds


def tips_for(subject: Subject, timeline: Timeline, tradeoff: Tradeoff | None) -> list[str]:
    """What to know and what to do, the most useful first."""
    tips = [] if tradeoff is None else [*_more(tradeoff), *_less(tradeoff)]
    if subject.plan is not None:
        tips += _unused(subject.plan)
    tips += _time(timeline)
    tips += _against_prediction(subject)
    return tips


def _more(curve: Tradeoff) -> list[str]:
    own = curve.chosen
    recomputed = own.forward_steps - curve.units
    if recomputed == 0:
        return []
    tips = []
    larger = [point for point in curve.points if point.budget > own.budget and point.forward_steps < own.forward_steps]
    best = next((point for point in larger if _saved(own, point, recomputed) >= WORTH), None)
    if best is not None:
        share = _saved(own, best, recomputed)
        removed = "all" if share == 1 else f"{share:.0%}"
        tips.append(
            f"{curve.text(best.budget - own.budget)} more would remove {removed} of the recomputation "
            f"({count_text(own.forward_steps - best.forward_steps)} of {count_text(recomputed)} steps)"
            f"{_faster(own, best)}."
        )
    none = next((point for point in larger if point.forward_steps == curve.units), None)
    if none is not None and none is not best:
        tips.append(f"With {curve.text(none.budget)} in all nothing would be recomputed{_faster(own, none)}.")
    return tips


def _less(curve: Tradeoff) -> list[str]:
    own = curve.chosen
    smaller = [
        point
        for point in curve.points
        if point.budget < own.budget and point.forward_steps <= own.forward_steps * (1 + CHEAP)
    ]
    tips = []
    if smaller and smaller[0].budget < 0.9 * own.budget:
        cost = smaller[0].forward_steps / own.forward_steps - 1
        how = f"{cost:.1%} more forward steps" if cost > 0 else "no more forward steps"
        tips.append(f"{curve.text(own.budget - smaller[0].budget)} less would cost {how}.")
    least = curve.points[0]
    if least.budget < own.budget:
        ratio = least.forward_steps / max(1, own.forward_steps)
        tips.append(f"The least that works is {curve.text(least.budget)}, at {ratio:,.3g} times the forward steps.")
    return tips


def _unused(plan: Plan) -> list[str]:
    capacity = plan.memory.device.capacity
    if capacity is None or plan.peak >= 0.9 * capacity:
        return []
    return [f"The plan peaks at {bytes_text(plan.peak)}: {bytes_text(capacity - plan.peak)} of the budget stay unused."]


def _time(timeline: Timeline) -> list[str]:
    again, total = timeline.seconds["recompute"], sum(timeline.seconds.values())
    if not again or not total:
        return []
    moved = timeline.seconds["move"] / total
    return [f"Recomputation takes {again / total:.0%} of the time{f', moving states {moved:.0%}' if moved else ''}."]


def _against_prediction(subject: Subject) -> list[str]:
    if subject.predicted is None or not subject.trace.complete:
        return []
    tips = []
    if subject.predicted.peak and subject.trace.peak > 1.05 * subject.predicted.peak:
        tips.append(
            f"The run peaked {subject.trace.peak / subject.predicted.peak - 1:.0%} above the prediction: its steps are "
            "larger than the one that was measured."
        )
    if subject.predicted.seconds and subject.trace.seconds > 1.5 * subject.predicted.seconds:
        ratio = subject.trace.seconds / subject.predicted.seconds
        tips.append(f"The run took {ratio:.1f} times as long as predicted: the machine was busy, or steps differ.")
    return tips


def _saved(own: TradeoffPoint, point: TradeoffPoint, recomputed: int) -> float:
    return (own.forward_steps - point.forward_steps) / recomputed


def _faster(own: TradeoffPoint, point: TradeoffPoint) -> str:
    if not own.seconds or point.seconds >= own.seconds:
        return ""
    return f", and the whole would take {1 - point.seconds / own.seconds:.0%} less time"
