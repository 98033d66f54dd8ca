"""Cards: five questions that a reader has about a run, each with a short answer.

They are made from a summary; pages, text and notebooks lay them out.
"""

import re
from collections import Counter
from dataclasses import dataclass

from remat.planners.memory_curve import has_memory_curve
from remat.reporting.headline import headline_of
from remat.reporting.summary import Summary
from remat.schedule import Drop, Fetch, Free, Keep, Op, Run, Turn
from remat.schedule.notation import format_op
from remat.units import bytes_text, count_text

__all__ = ["Card", "cards_of", "item_text"]

MOST_HOLDERS = 6  # the most holders to name: a graph has dozens of storages live at its peak


@dataclass(frozen=True)
class Card:
    """A question, its answer in a few words, and a sentence of detail."""

    question: str
    answer: str
    detail: str


def cards_of(summary: Summary) -> tuple[Card, ...]:
    """The peak, when it is reached, what is live then, how much is recomputed, what more memory would save."""
    cards = (_peak(summary), _when(summary), _live_at_peak(summary), _recomputed(summary), _more_memory(summary))
    say = summary.in_units
    return tuple(Card(say(card.question), say(card.answer), say(card.detail)) for card in cards)


def item_text(what: str, unit: str = "step") -> str:
    """What is live, as text: "tape 3..9" becomes "tape of steps 3 to 9"."""
    several = re.sub(r"^tape (\d+)\.\.(\d+)", rf"tape of {unit}s \1 to \2", what)
    return re.sub(r"^tape (\d+)", rf"tape of {unit} \1", several)


def _peak(summary: Summary) -> Card:
    trace, plan_bytes, headline = summary.subject.trace, summary.plan_bytes, headline_of(summary)
    requested = summary.requested_bytes
    clauses = [f"= {headline.decomposition}"] if headline.parts else []
    if requested is None:
        clauses.append("no budget in bytes was given")
    elif plan_bytes is not None and plan_bytes < requested:
        clauses.append(
            f"the plan has {bytes_text(plan_bytes)} for states and tapes, the rest is for running steps and bookkeeping"
        )
    if trace.always:
        clauses.append(f"{bytes_text(sum(trace.always.values()))} are always live besides")
    return Card("What is the peak?", headline.short, "; ".join(clauses))


def _when(summary: Summary) -> Card:
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
    op = f"op {count_text(peak.index + 1)} of {count_text(trace.totals.ops)} ({format_op(peak.op).partition(' ')[0]})"
    return Card("When?", f"{words[peak.phase]}, {_step_text(peak.op)}", f"{when}, {op}{again}")


def _step_text(op: Op) -> str:
    """Where in the loop an op is."""
    if isinstance(op, Turn):
        return "at the turn"
    if isinstance(op, Keep | Fetch | Drop):
        return f"at state {op.state}"
    if isinstance(op, Run | Free):
        return f"at operation {op.operation}" if isinstance(op, Run) else f"after storage {op.storage} is freed"
    return f"at step {op.start}" if op.stop - op.start == 1 else f"at steps {op.start} to {op.stop - 1}"


def _live_at_peak(summary: Summary) -> Card:
    trace = summary.subject.trace
    sizes: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for what, level, size in trace.at_peak:
        if level == trace.device and (size or not what.startswith("tape")):
            kind = "states" if what.startswith("state") else "tapes" if what.startswith("tape") else what
            sizes[kind] += size
            names.setdefault(kind, []).append(what)
    texts = [f"{_count(kind, names[kind])}: {bytes_text(size)}" for kind, size in sizes.most_common()]
    if not texts:
        return Card("Who holds it?", "not known", "the trace does not say")
    rest = texts[1:MOST_HOLDERS] + [f"{len(texts) - MOST_HOLDERS} more"] * (len(texts) > MOST_HOLDERS)
    return Card("Who holds it?", texts[0], f"then {', '.join(rest)}" if rest else "nothing else")


def _count(kind: str, names: list[str]) -> str:
    if len(names) == 1:
        return {"working state": "the working state", "cotangent": "cotangents"}.get(kind, _one(names[0]))
    return f"{count_text(len(names))} {'kept states' if kind == 'states' and not _by_tapes(names) else kind}"


def _one(what: str) -> str:
    return f"kept {what}" if what.startswith("state") and not _by_tapes([what]) else f"the {item_text(what)}"


def _by_tapes(names: list[str]) -> bool:
    """Whether these are states held by tapes, as in a chain, rather than kept states."""
    return any(name.endswith("held by tapes") for name in names)


def _recomputed(summary: Summary) -> Card:
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


def _more_memory(summary: Summary) -> Card:
    question = "What would more memory buy?"
    ended = not summary.subject.trace.complete
    if summary.curve is None or ended:
        return _more_memory_unknown(summary, question)
    if summary.subject.trace.recomputed == 0:
        return Card(question, "nothing", "no step is recomputed; see below what less would cost")
    tips = [tip for tip in summary.tips if " more would remove" in tip or "nothing would be recomputed" in tip]
    if not tips:
        if summary.curve.unit == "slots":
            return Card(
                question, "nothing in slots", "slots count states only; a budget in bytes may hold tapes as well"
            )
        return Card(question, "nothing", "no larger budget recomputes less")
    answer = re.sub(r" \(.*?\)", "", tips[0]).removesuffix(".")
    return Card(question, answer, " ".join(tips[1:]) or "see the trade-off below")


def _more_memory_unknown(summary: Summary, question: str) -> Card:
    """Why no other budgets are compared, and how to compare them."""
    subject = summary.subject
    if not subject.trace.complete:
        return Card(question, "not known", "the run ended early")
    if subject.sized is None or not has_memory_curve(subject.sized, subject.requested_bytes, subject.step_cost):
        return Card(question, "not known", "no plan is known to compare with")
    if subject.trace.recomputed == 0:
        return Card(question, "nothing", "no step is recomputed; a report with tradeoff=True says what less would cost")
    return Card(question, "not computed", "a report with tradeoff=True plans for other budgets, and draws the curve")
