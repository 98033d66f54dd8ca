"""Cards: the five questions that everyone asks of a run, each with its answer in a few words."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat.units import bytes_text, count_text

if TYPE_CHECKING:
    from remat.report.summary import Summary

__all__ = ["Card", "cards_of"]


@dataclass(frozen=True)
class Card:
    """A question, its answer in a few words, and a sentence more."""

    question: str
    answer: str
    detail: str


def cards_of(summary: "Summary") -> tuple[Card, ...]:
    """The peak, when it is, who holds it, how much is recomputed, what more memory would buy."""
    return (_peak(summary), _when(summary), _who(summary), _recomputed(summary), _more(summary))


def _peak(summary: "Summary") -> Card:
    trace, budget = summary.subject.trace, summary.budget
    detail = "no budget in bytes was given"
    if budget:
        detail = f"{trace.peak / budget:.0%} of the budget of {bytes_text(budget)}"
        asked = summary.subject.asked
        if asked and asked > budget:
            detail += f", which is {bytes_text(asked)} less what is set aside for bookkeeping and for running steps"
    if trace.totals.allocated is not None:
        detail += f"; the allocator saw {bytes_text(trace.totals.allocated)}, with all that steps allocate"
    if trace.always:
        detail += f"; {bytes_text(sum(trace.always.values()))} are always live besides"
    return Card("What is the peak?", bytes_text(trace.peak), detail)


def _when(summary: "Summary") -> Card:
    peak, trace = summary.timeline.peak, summary.subject.trace
    if peak is None:
        return Card("When?", "never", "there are no events")
    words = {
        "forward": "in the first sweep",
        "recompute": "while it recomputes",
        "backward": "while it pulls back",
        "move": "while it moves a state",
    }
    where = f"op {count_text(peak.index + 1)} of {count_text(trace.totals.ops)}"
    return Card(
        "When?",
        f"{where}, {words[peak.phase]}",
        f"at {summary.time(peak.time)} of {summary.time(summary.timeline.span)}: {peak.op}",
    )


def _who(summary: "Summary") -> Card:
    trace = summary.subject.trace
    kinds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for what, level, size in trace.at_peak:
        if level == trace.device:
            kind = _kind(what)
            kinds[kind] += size
            counts[kind] += 1
    ranked = kinds.most_common()
    if not ranked:
        return Card("Who holds it?", "nobody", "")
    top, size = ranked[0]
    several = f"{count_text(counts[top])} {top}" if counts[top] > 1 else _single(top)
    rest = ", ".join(f"{_count(kind, counts[kind])} {bytes_text(size)}" for kind, size in ranked[1:])
    return Card("Who holds it?", f"{several}: {bytes_text(size)}", f"then {rest}" if rest else "nothing else")


def _recomputed(summary: "Summary") -> Card:
    trace = summary.subject.trace
    if trace.recomputed == 0:
        return Card("How much is recomputed?", "nothing", f"all {count_text(trace.forward_steps)} steps run once")
    mean = trace.forward_steps / max(1, trace.totals.reached)
    total = sum(summary.timeline.seconds.values())
    share = f"; {summary.timeline.seconds['recompute'] / total:.0%} of the time" if total else ""
    most = max(summary.timeline.histogram, default=1)
    return Card(
        "How much is recomputed?",
        f"{count_text(trace.recomputed)} steps",
        f"a step runs {mean:.2f} times on average, {count_text(most)} times at the most{share}",
    )


def _more(summary: "Summary") -> Card:
    if summary.tradeoff is not None and summary.subject.trace.recomputed == 0:
        return Card("What would more memory buy?", "nothing", "no step is recomputed; see below what less would cost")
    tips = [tip for tip in summary.tips if "more would" in tip or "nothing would be" in tip]
    if not tips:
        why = "no plan is known, so nothing can be said" if summary.tradeoff is None else "no larger budget was better"
        return Card("What would more memory buy?", "not known", why)
    answer, _, _ = tips[0].partition(" (")
    answer = answer.removesuffix(".")
    return Card("What would more memory buy?", answer, " ".join(tips[1:]) or "see the trade-off below")


def _kind(what: str) -> str:
    if what.startswith("state"):
        return "kept states"
    if what.startswith("tape"):
        return "tapes"
    return {"working state": "the working state", "cotangent": "cotangents"}.get(what, what)


def _single(kind: str) -> str:
    return {"kept states": "one kept state", "tapes": "one tape"}.get(kind, kind)


def _count(kind: str, count: int) -> str:
    return f"{count_text(count)} {kind}" if count > 1 else _single(kind)
