"""Tables, as rows of text for all formats: what is live at the peak, predicted against measured, and more."""

from dataclasses import replace

from remat.profiling import Profile
from remat.profiling.profiler import MOST_PASSES
from remat.profiling.segment_passes import PASS_KINDS, SegmentPass
from remat.reporting.block_contents import HEAD, block_contents
from remat.reporting.cards import item_text
from remat.reporting.headline import headline_of
from remat.reporting.summary import Summary
from remat.reporting.table import Folded, Table
from remat.reporting.tape_table import tape_table
from remat.schedule import Trace
from remat.units import bytes_text, count_text, number_text, seconds_text

__all__ = ["RUNS", "compare", "passes_table", "profile_table", "tables_of"]

RUNS = "How often steps run"
MOST_ITEMS = 12
MOST_LISTED = 4  # kept states of a level, or tapes, with a row each; if there are more, they share one
MOST_RUNS = 20  # rows of the table of how often steps run
MOST_SEGMENTS = 60  # rows of the table of segments


def tables_of(summary: Summary) -> tuple[Table, ...]:
    """The tables that have rows, the most useful first."""
    makers = (_live_at_peak, tape_table, _predicted, _runs, _contents, _moved, _always, _plan)
    say = summary.in_units
    tables = [table for make in makers if (table := make(summary)) is not None and table.rows]
    return tuple(
        replace(table, title=say(table.title), head=tuple(map(say, table.head)), note=say(table.note))
        for table in tables
    )


def compare(summaries: list[Summary]) -> Table:
    """A comparison with a row per subject; ratios are relative to the first."""
    first = summaries[0].subject.trace
    timed = len({(summary.subject.trace.measured, summary.subject.trace.timed) for summary in summaries}) == 1
    # A meter slows down every op, so times measured with it mean nothing.
    metered = all(summary.subject.trace.totals.allocated is not None for summary in summaries)
    peaks = [headline_of(summary).total if metered else summary.subject.trace.peak for summary in summaries]
    rows = []
    for summary, peak in zip(summaries, peaks, strict=True):
        trace = summary.subject.trace
        cells = [
            (bytes_text(peak), peak, peaks[0]),
            (count_text(trace.forward_steps), trace.forward_steps, first.forward_steps),
            *([(summary.time(trace.seconds), trace.seconds, first.seconds)] if timed and not metered else []),
        ]
        ratios = [text if trace is first else f"{text} ({_ratio(value, base)})" for text, value, base in cells]
        rows.append((summary.label, *ratios, count_text(trace.recomputed)))
    head = ("", "peak", "forward steps", *(["time"] if timed and not metered else []), "recomputed")
    return Table("Side by side", head, tuple(rows))


def profile_table(profile: Profile, *, anonymous: bool) -> Table:
    """All call sites of a profile, with the totals of their calls."""
    rows = [
        (
            f"{entry.what}, place {number}" if anonymous else f"{entry.what} at {entry.site.short}",
            count_text(len(entry.calls)),
            count_text(entry.steps),
            "-" if entry.peak is None else bytes_text(entry.peak),
            seconds_text(entry.seconds),
        )
        for number, entry in enumerate(profile.places(), 1)
    ]
    head = ("calls by place", "calls", "steps run", "largest peak", "time in all")
    return Table("All calls of the profile", head, tuple(rows))


def passes_table(profile: Profile, *, anonymous: bool) -> Table:
    """The segments of a profile: how often each was run, recomputed and pulled back, and the seconds of recomputing."""
    by_name: dict[str, list[SegmentPass]] = {}
    for each in tuple(profile.passes):
        by_name.setdefault(each.name, []).append(each)
    rows = [
        (
            f"segment {number}" if anonymous else name.rpartition("<locals>.")[2],
            *(count_text(sum(each.what == kind for each in passes)) for kind in PASS_KINDS),
            seconds_text(sum(each.seconds for each in passes if each.what == "recompute")),
        )
        for number, (name, passes) in enumerate(by_name.items(), 1)
    ]
    note = "print(profile) lists the passes in order. "
    if len(rows) > MOST_SEGMENTS:
        note += f"{count_text(len(rows) - MOST_SEGMENTS)} more segments are not shown. "
    if len(profile.passes) == MOST_PASSES:
        note += f"Of all passes the first {count_text(MOST_PASSES)} are kept. "
    head = ("segment", "run forward", "recomputed", "pulled back", "recomputing took")
    return Table("Passes over segments", head, tuple(rows[:MOST_SEGMENTS]), note.strip())


def _live_at_peak(summary: Summary) -> Table:
    """What is live at the peak, the largest first."""
    trace, peak = summary.subject.trace, max(1, summary.subject.trace.peak)
    live = sorted(_grouped(trace, summary.unit), key=lambda item: (item[1] != trace.device, -item[2]))
    rows = [
        (what, level, bytes_text(size), f"{size / peak:.1%}" if level == trace.device else "elsewhere")
        for what, level, size in live[:MOST_ITEMS]
    ]
    if len(live) > MOST_ITEMS:
        size = sum(size for _, level, size in live[MOST_ITEMS:] if level == trace.device)
        rows.append((f"{len(live) - MOST_ITEMS} more", "", bytes_text(size), f"{size / peak:.1%}"))
    note = "State i is the input of step i; a tape is what the backward of its steps needs."
    source = f" The step is at {summary.subject.source}." if summary.subject.source else ""
    return Table("Who is live at the peak", ("what", "where", "bytes", "share"), tuple(rows), note + source)


def _grouped(trace: Trace, unit: str) -> list[tuple[str, str, int]]:
    """What is live at the peak; many kept states of a level, or many tapes, become one entry."""
    groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for what, level, size in trace.at_peak:
        if what.startswith("tape ") and not size:
            continue  # the tape of a stage that holds only its input and output
        kind, _, name = what.partition(" ") if what.startswith(("state ", "tape ")) else (what, "", "")
        groups.setdefault((kind, level), []).append((name, size))
    items = []
    for (kind, level), members in groups.items():
        if len(members) > MOST_LISTED:
            names = ", ".join(name for name, _ in members[:4])
            size = sum(size for _, size in members)
            word = "kept states" if kind == "state" else f"tapes of {unit}s"
            items.append((f"{count_text(len(members))} {word}: {names}, …, {members[-1][0]}", level, size))
        else:
            items += [(item_text(f"{kind} {name}", unit) if name else kind, level, size) for name, size in members]
    return items


def _predicted(summary: Summary) -> Table | None:
    predicted, measured = summary.subject.predicted, summary.subject.trace
    if predicted is None:
        return None
    rows: list[tuple[str, ...]] = [
        (
            "forward steps",
            count_text(predicted.forward_steps),
            count_text(measured.forward_steps),
            _ratio(measured.forward_steps, predicted.forward_steps),
        ),
        (
            "states and tapes at the peak",
            bytes_text(predicted.peak),
            bytes_text(measured.peak),
            _ratio(measured.peak, predicted.peak),
        ),
    ]
    note = ""
    if summary.subject.sized is summary.subject.plan:
        seconds = (predicted.seconds, measured.seconds)
        rows.append(("time", *map(summary.time, seconds), _ratio(measured.seconds, predicted.seconds)))
    else:
        note = "The plan was made in slots and knows no sizes: the prediction takes a step's from this run."
    return Table("Predicted and measured", ("", "predicted", "measured", "ratio"), tuple(rows), note)


def _runs(summary: Summary) -> Table:
    rows = [(count_text(times), count_text(units)) for times, units in summary.timeline.histogram.items()]
    if len(rows) > MOST_RUNS:
        units = sum(list(summary.timeline.histogram.values())[MOST_RUNS - 1 :])
        rows = [*rows[: MOST_RUNS - 1], (f"more, up to {rows[-1][0]}", count_text(units))]
    return Table(RUNS, ("times run", "steps"), tuple(rows))


def _moved(summary: Summary) -> Table:
    trace, totals = summary.subject.trace, summary.subject.trace.totals
    rows = [
        (
            level,
            count_text(totals.keeps.get(level, 0)),
            bytes_text(totals.written.get(level, 0)),
            count_text(totals.fetches.get(level, 0)),
            bytes_text(totals.read.get(level, 0)),
            bytes_text(trace.peaks[level]) if level in trace.peaks else "",
        )
        for level in dict.fromkeys((*trace.peaks, *totals.keeps, *totals.fetches))
    ]
    head = ("level", "states kept", "bytes written", "states fetched", "bytes read", "peak")
    return Table("States moved", head, tuple(rows))


def _always(summary: Summary) -> Table:
    rows = [(name, bytes_text(size)) for name, size in summary.subject.trace.always.items()]
    return Table("Always live, apart from the peak", ("what", "bytes"), tuple(rows))


def _contents(summary: Summary) -> Table | None:
    """What is kept and recomputed inside blocks that keep part of their residuals."""
    contents = [] if summary.subject.plan is None else block_contents(summary.subject.plan)
    rows = [(blocks if i == 0 else "", *row) for blocks, rows in contents for i, row in enumerate(rows)]
    note = "The time is that of the operation that makes it, measured alone."
    return Table("What is kept and recomputed inside blocks", ("blocks", *HEAD), tuple(rows), note, numbers=False)


def _plan(summary: Summary) -> Table | None:
    plan = summary.subject.plan
    if plan is None:
        return None
    rows = [
        ("planner", plan.planner + (f": {plan.reason}" if plan.reason else "")),
        ("claim", Folded(plan.claim.short, str(plan.claim))),
        ("memory", str(plan.memory)),
        *(summary.subject.sized or plan).problem.describe(times=True),
    ]
    return Table("The plan", ("", ""), tuple(rows), numbers=False)


def _ratio(value: float, base: float) -> str:
    if not base or not value:
        return "-"
    if value == base:
        return "the same"
    if abs(value - base) < 0.05 * base:
        return f"{abs(value / base - 1):.1%} {'more' if value > base else 'less'}"
    return f"{number_text(value / base)} times" if value > base else f"{number_text(base / value)} times less"
