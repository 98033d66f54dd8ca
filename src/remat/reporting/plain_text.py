"""The report as text 80 columns wide, without control characters, for terminals, logs and tests."""

from collections.abc import Iterator
from math import ceil
from textwrap import wrap

from remat.reporting.cards import cards_of
from remat.reporting.summary import Summary
from remat.reporting.table import Folded, Table
from remat.reporting.tables import tables_of
from remat.units import bytes_text

__all__ = ["text_of"]

WIDTH = 80
_MARKS = (("state", "#"), ("tape", "+"), ("cotangent", "."))
_PHASES = "FRB-"


def text_of(summaries: list[Summary], title: str, tables: list[Table]) -> str:
    """The whole report; the tables come first."""
    lines = [*wrap(title, WIDTH), "=" * min(WIDTH, len(title)), ""]
    most = max((summary.subject.trace.peak for summary in summaries), default=0)
    for table in tables:
        lines += [*_table(table), ""]
    for summary in summaries:
        lines += _one(summary, most)
    return "\n".join(_printable(line).rstrip() for line in lines).rstrip() + "\n"


def _printable(line: str) -> str:
    """The line without control characters, which a terminal would interpret."""
    return "".join(letter if letter.isprintable() else "·" for letter in line)


def _one(summary: Summary, most: int) -> Iterator[str]:
    yield from wrap(summary.label, WIDTH)
    yield "-" * min(WIDTH, len(summary.label))
    if summary.subject.warning:
        yield from wrap(summary.subject.warning, WIDTH)
    for card in cards_of(summary):
        pause = ". " if card.detail[:1].isupper() else "; "
        yield from _wrapped(f"{card.question} ", card.answer + (pause + card.detail if card.detail else ""))
    yield ""
    yield from _chart(summary, most)
    yield ""
    for table in tables_of(summary):
        yield from _table(table)
        yield ""
    for tip in summary.tips:
        yield from _wrapped("tip: ", tip)
    for note in summary.notes:
        yield from _wrapped("note: ", note)
    yield ""


def _chart(summary: Summary, most: int, height: int = 10) -> Iterator[str]:
    """Live bytes over time as columns of characters; the last line shows the phases."""
    width = WIDTH - 14
    timeline = summary.timeline
    unit = max(1, most) / height
    columns = [_stack(sizes, unit, height) for sizes in timeline.envelope(width)]
    for level in reversed(range(height)):
        label = bytes_text(round((level + 1) * unit)) if level in (height - 1, height // 2 - 1) else ""
        yield f"{label:>11} |" + "".join(column[level] for column in columns)
    yield f"{'doing':>11} |" + "".join(_PHASES[phase] for phase in timeline.doing(width))
    legend = ", ".join(f"{mark} {kind}" for kind, mark in _MARKS)
    yield f"{'':>4}{legend}; F forward, R recompute, B backward, - move"


def _stack(sizes: tuple[int, int, int], unit: float, height: int) -> str:
    text, total = "", 0
    for size, (_, mark) in zip(sizes, _MARKS, strict=True):
        total += size
        text = text.ljust(min(height, ceil(total / unit)), mark)
    return text[:height].ljust(height)


def _table(table: Table) -> Iterator[str]:
    if table.headline:
        yield from _wrapped("", table.headline)
    for tip in table.tips:
        yield from _wrapped("tip: ", tip)
    yield table.title
    if len(table.head) == 2 and not any(table.head):
        for name, value in table.rows:
            more = f": {value.more}" if isinstance(value, Folded) and value.more else ""
            yield from _wrapped(f"  {name:<14}", value + more)
        return
    width, head, rows = WIDTH - 2, table.head, table.rows
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    least = min(10, widths[0])  # of a name, so that the line of a tensor stands beside a long operation
    while sum(widths[1:]) + 2 * len(widths) > width - least and len(widths) > 2:
        widths.pop()  # columns that do not fit are dropped, from the right
    widths[0] = max(8, min(widths[0], width - sum(widths[1:]) - 2 * len(widths)))  # names are cut, numbers never
    for row in (head, *rows):
        first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
        numbers = [f"{cell:>{size}}" for cell, size in zip(row[1:], widths[1:], strict=False)]
        yield "  " + "  ".join([f"{first:<{widths[0]}}", *numbers])
    if table.note:
        yield from _wrapped("  ", table.note)


def _wrapped(head: str, text: str) -> list[str]:
    return wrap(head + text, WIDTH, subsequent_indent=" " * min(len(head), 16)) or [head]
