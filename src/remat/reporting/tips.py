"""Tips: sentences about what the numbers of a report mean for the choice of a budget, the most useful first."""

from remat.planners import Plan, Point
from remat.planners.memory_curve import MemoryCurve
from remat.reporting.dominating_tensor import dominating_tensor
from remat.reporting.report_subject import ReportSubject
from remat.units import bytes_text, count_text, number_text

__all__ = ["tips_for"]

WORTH_A_TIP = 0.25  # more memory is worth a tip if it removes this fraction of the recomputation
NEGLIGIBLE = 0.05  # less memory is worth a tip if it costs at most this fraction more forward steps


def tips_for(subject: ReportSubject, curve: MemoryCurve | None) -> list[str]:
    """What to know and what to do, the most useful first."""
    tips = [] if curve is None else [*_more(curve), *_better(curve), *_less(curve)]
    # A run loaded from a file has no measured step, so the curve does not include a step's overhead.
    if tips and subject.requested_bytes is not None and subject.step_cost is None:
        tips.append("These budgets are without what a run sets aside for its steps and for bookkeeping.")
    if subject.sized is not None and subject.plan is subject.sized:
        tips += _unused(subject.sized)
    if curve is not None and curve.unit == "slots" and curve.chosen.forward_steps > curve.units:
        tips.append("Slots count states only: a budget in bytes (memory=) may hold tapes as well, and recompute less.")
    if subject.tape is not None:
        steps = "a step's tape" if subject.tape.steps == 1 else "the tape"
        tips += dominating_tensor(subject.tape.tensors, subject.tape.bytes, steps)
    return tips + _against_prediction(subject)


def _more(curve: MemoryCurve) -> list[str]:
    chosen = curve.chosen
    recomputed = chosen.forward_steps - curve.units
    if recomputed == 0:
        return []
    tips = []
    larger = [
        point for point in curve.points if point.budget > chosen.budget and point.forward_steps < chosen.forward_steps
    ]
    best = next((point for point in larger if _saved(chosen, point, recomputed) >= WORTH_A_TIP), None)
    if best is not None:
        fraction = _saved(chosen, best, recomputed)
        removed = "all" if fraction == 1 else f"{fraction:.0%}"
        tips.append(
            f"{curve.text(best.budget - chosen.budget)} more would remove {removed} of the recomputation "
            f"({count_text(chosen.forward_steps - best.forward_steps)} of {count_text(recomputed)} steps)"
            f"{_faster(chosen, best)}."
        )
    none = next((point for point in larger if point.forward_steps == curve.units), None)
    if none is not None and none is not best:
        tips.append(f"With {curve.text(none.budget)} in all nothing would be recomputed{_faster(chosen, none)}.")
    return tips


def _better(curve: MemoryCurve) -> list[str]:
    """What another planner would save in the same memory."""
    best = curve.best_in_same_memory
    if best is None or best.forward_steps >= curve.chosen.forward_steps:
        return []
    fewer = count_text(curve.chosen.forward_steps - best.forward_steps)
    return [f'In the same memory planner="auto" would run {fewer} steps less{_faster(curve.chosen, best)}.']


def _less(curve: MemoryCurve) -> list[str]:
    chosen, least = curve.chosen, curve.points[0]
    smaller = [
        point
        for point in curve.points
        if point.budget < chosen.budget and point.forward_steps <= chosen.forward_steps * (1 + NEGLIGIBLE)
    ]
    how_planned = "" if curve.best_in_same_memory is None else ', planned by "auto"'
    tips = []
    if smaller and smaller[0].budget < 0.9 * chosen.budget:
        cost = smaller[0].forward_steps / chosen.forward_steps - 1
        how = f"{cost:.1%} more forward steps" if cost > 0 else "no more forward steps"
        tips.append(f"{curve.text(chosen.budget - smaller[0].budget)} less would cost {how}{how_planned}.")
    if least.budget < chosen.budget:
        runs = f"a step runs {number_text(least.forward_steps / curve.units)} times"
        tips.append(f"The least that works is {curve.text(least.budget)}, where {runs}{how_planned}.")
    return tips


def _unused(plan: Plan) -> list[str]:
    capacity = plan.memory.device.capacity
    if capacity is None or plan.peak >= 0.9 * capacity:
        return []
    return [f"The plan peaks at {bytes_text(plan.peak)}: {bytes_text(capacity - plan.peak)} of the budget stay unused."]


def _against_prediction(subject: ReportSubject) -> list[str]:
    if subject.predicted is None or not subject.trace.complete:
        return []
    tips = []
    if subject.predicted.peak and subject.trace.peak > 1.05 * subject.predicted.peak:
        tips.append(
            f"The run peaked {subject.trace.peak / subject.predicted.peak - 1:.0%} above the prediction: its steps are "
            "larger than the one that was measured."
        )
    slow = subject.trace.seconds / subject.predicted.seconds if subject.predicted.seconds else 1.0
    if slow > 1.5 and subject.trace.totals.allocated is None:
        tips.append(f"The run took {slow:.1f} times as long as predicted: the machine was busy, or steps differ.")
    return tips


def _saved(chosen: Point, point: Point, recomputed: int) -> float:
    return (chosen.forward_steps - point.forward_steps) / recomputed


def _faster(chosen: Point, point: Point) -> str:
    """How much less time the other point takes, as text."""
    if not chosen.seconds or point.seconds > chosen.seconds:
        return ""
    return f", for {1 - point.seconds / chosen.seconds:.0%} less time"
