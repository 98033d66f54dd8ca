"""Cards: the five questions that everyone asks of a run, each with its answer in a few words."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat.units import bytes_text, count_text

if TYPE_CHECKING:
    from remat.reporting.summary import Summary

__all__ = ["Card", "cards_of", "holder_text"]


@dataclass(frozen=True)
class Card:
    """A question, its answer in a few words, and a sentence more."""

    question: str
    answer: str
    detail: str


def cards_of(summary: "Summary") -> tuple[Card, ...]:
    """The peak, when it is, who holds it, how much is recomputed, what more memory would buy."""
    return (_peak(summary), _when(summary), _who(summary), _recomputed(summary), _more(summary))


def holder_text(what: str) -> str:
    """Who is live, as people say it: tape 3..9 is the tape of steps 3 to 9."""
    several = re.sub(r"^tape (\d+)\.\.(\d+)", r"tape of steps \1 to \2", what)
    return re.sub(r"^tape (\d+)", r"tape of step \1", several)


def _peak(summary: "Summary") -> Card:
    trace, share = summary.subject.trace, summary.share
    parts = [] if share is None else [_of_budget(trace.peak, share, summary.budget or share)]
    if trace.totals.allocated is not None:
        parts.append(f"the allocator saw {bytes_text(trace.totals.allocated)}, with all that steps allocate")
    if trace.always:
        parts.append(f"{bytes_text(sum(trace.always.values()))} are always live besides")
    return Card("What is the peak?", bytes_text(trace.peak), "; ".join(parts) or "no budget in bytes was given")


def _of_budget(peak: int, share: int, budget: int) -> str:
    """How a peak compares with the bytes that there are for states and tapes, and with what was asked for."""
    whole = f"the budget of {bytes_text(budget)}"
    if peak > budget:
        return f"{peak / budget - 1:.1%} over {whole}"
    used = "all" if peak == budget else f"{int(1000 * peak / budget) / 10:g}%"  # never rounded up to all of it
    if share >= budget:
        return f"{used} of {whole}"
    rest = f"{bytes_text(share)} of it are for states and tapes, the rest for running steps and bookkeeping"
    return f"{used} of {whole}; {rest}"


def _when(summary: "Summary") -> Card:
    peak, trace = summary.timeline.peak, summary.subject.trace
    if peak is None:
        return Card("When?", "never", "there are no events")
    words = {
        "forward": "in the first sweep",
        "recompute": "in the reverse sweep, while it recomputes",
        "backward": "in the reverse sweep, while it pulls back",
        "move": "while it moves a state",
    }
    rows = summary.timeline.rows
    times = sum(1 for row in range(len(rows)) if rows.total(row) == peak.size)
    again = f"; reached {count_text(times)} times, this is the first" if times > 2 else ""
    when = f"at {summary.time(peak.time)} of {summary.time(summary.timeline.span)}"
    op = f"op {count_text(peak.index + 1)} of {count_text(trace.totals.ops)} ({_op_text(peak.op)})"
    return Card("When?", f"{words[peak.phase]}, {_step_text(peak.op)}", f"{when}, {op}{again}")


def _step_text(op: str) -> str:
    """Where in the loop an op is."""
    kind, *numbers = op.split()
    if kind == "turn":
        return "at the turn"
    if kind in ("keep", "fetch", "drop"):
        return f"at state {numbers[0]}"
    low, high = sorted(map(int, numbers))
    return f"at step {low}" if high - low == 1 else f"at steps {low} to {high - 1}"


def _op_text(op: str) -> str:
    return op.partition(" ")[0]


def _who(summary: "Summary") -> Card:
    trace = summary.subject.trace
    sizes: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for what, level, size in trace.at_peak:
        if level == trace.device:
            kind = "states" if what.startswith("state") else "tapes" if what.startswith("tape") else what
            sizes[kind] += size
            names.setdefault(kind, []).append(what)
    texts = [f"{_count(kind, names[kind])}: {bytes_text(size)}" for kind, size in sizes.most_common()]
    if not texts:
        return Card("Who holds it?", "not known", "the trace does not say")
    return Card("Who holds it?", texts[0], f"then {', '.join(texts[1:])}" if texts[1:] else "nothing else")


def _count(kind: str, names: list[str]) -> str:
    if len(names) == 1:
        return {"working state": "the working state", "cotangent": "cotangents"}.get(kind, _one(names[0]))
    return f"{count_text(len(names))} {'kept states' if kind == 'states' else kind}"


def _one(what: str) -> str:
    return f"kept {what}" if what.startswith("state") else f"the {holder_text(what)}"


def _recomputed(summary: "Summary") -> Card:
    trace, question = summary.subject.trace, "How much is recomputed?"
    units = trace.problem_units
    if trace.recomputed == 0:
        ran = f"all {count_text(units)} steps run once"
        if trace.totals.reached < units or not trace.complete:
            ran = f"the run ended early: {count_text(trace.totals.reached)} steps had run" + (
                f" of {count_text(units)}" if units else ""
            )
        return Card(question, "nothing", ran)
    mean = trace.forward_steps / max(1, trace.totals.reached)
    most = max(summary.timeline.histogram, default=1)
    return Card(
        question,
        f"{count_text(trace.recomputed)} step{'s' * (trace.recomputed != 1)}",
        f"a step runs {mean:.2f} times on average, {count_text(most)} times at the most; {summary.extra_text}",
    )


def _more(summary: "Summary") -> Card:
    question = "What would more memory buy?"
    ended = not summary.subject.trace.complete
    if summary.tradeoff is None or ended:
        return Card(question, "not known", "the run ended early" if ended else "no plan is known to compare with")
    if summary.subject.trace.recomputed == 0:
        return Card(question, "nothing", "no step is recomputed; see below what less would cost")
    tips = [tip for tip in summary.tips if " more would remove" in tip or "nothing would be recomputed" in tip]
    if not tips:
        if summary.tradeoff.unit == "slots":
            return Card(
                question, "nothing in slots", "slots count states only; a budget in bytes may hold tapes as well"
            )
        return Card(question, "nothing", "no larger budget recomputes less")
    answer = re.sub(r" \(.*?\)", "", tips[0]).removesuffix(".")
    return Card(question, answer, " ".join(tips[1:]) or "see the trade-off below")
