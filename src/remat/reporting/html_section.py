"""The section of the page about one subject, as escaped HTML: cards, canvases, pictures, tips and tables."""

from html import escape
from math import ceil, inf

from remat.reporting.cards import cards_of
from remat.reporting.headline import headline_of
from remat.reporting.page_data import top_of
from remat.reporting.summary import Summary
from remat.reporting.svg import histogram_svg, memory_curve_svg
from remat.reporting.svg_liveness import liveness_svg
from remat.reporting.table import Folded, Table
from remat.reporting.tables import RUNS, tables_of
from remat.units import bytes_text, count_text

__all__ = ["overview_html", "section_html", "table_html"]

TEXT_COLUMNS = ("where", "what", "shape", "dtype", "module")  # columns of text in tables of numbers
_BUTTONS = (
    ("in", "Zoom in", "+"),
    ("out", "Zoom out", "-"),
    ("fit", "Show all", "0"),
    ("peak", "Go to peak", "P"),
    ("left", "Left", "←"),
    ("right", "Right", "→"),
)


def overview_html(summaries: list[Summary]) -> str:
    """The charts of all subjects on one scale of bytes."""
    top, bins = max(map(top_of, summaries)), 240 if len(summaries) == 2 else 120
    figures = "".join(
        f"<figure><h3>{escape(summary.label)}</h3><p>{escape(str(headline_of(summary)))}</p>"
        f"{liveness_svg(summary, 540, 240, top, bins)}</figure>"
        for summary in summaries
    )
    return f'<h2>Live memory, on one scale</h2><div class="pair">{figures}</div>'


def section_html(summary: Summary, number: int, count: int) -> str:
    """The section of one of `count` subjects."""
    name = f"v{number}"
    heading = f'<h2 id="{name}">{escape(summary.label)}</h2>' if count > 1 else ""
    labelled = f'aria-labelledby="{name}"' if count > 1 else 'aria-label="the run"'
    warning = f'<p class="warning">{escape(summary.subject.warning)}</p>' if summary.subject.warning else ""
    tables = [table for table in tables_of(summary) if table.title != summary.in_units(RUNS)]  # drawn as a picture
    return f"""
<section class="view" {labelled}>
{heading}
{warning}
<p class="headline">{escape(str(headline_of(summary)))}</p>
{_liveness_figure(summary, with_picture=count == 1)}
<div class="cards">{_cards(summary)}</div>
{_schedule_figure()}
<div class="pair">{_pictures(summary)}</div>
<h3>Tips</h3>
<ul class="tips">{"".join(f"<li>{escape(tip)}</li>" for tip in summary.tips) or "<li>none</li>"}</ul>
{"".join(map(table_html, tables))}
<ul class="soft">{"".join(f"<li>{escape(note)}</li>" for note in summary.notes)}</ul>
</section>"""


def _cards(summary: Summary) -> str:
    return "".join(
        f'<dl class="card"><dt>{escape(card.question)}</dt><dd class="answer">{escape(card.answer)}</dd>'
        f'<dd class="detail">{escape(card.detail)}</dd></dl>'
        for card in cards_of(summary)
    )


def _liveness_figure(summary: Summary, *, with_picture: bool) -> str:
    """The chart of live bytes; `with_picture` adds a picture for readers without scripts, if there is no overview."""
    trace = summary.subject.trace
    label = (
        f"Live bytes over time. Peak {bytes_text(trace.peak)}, {count_text(trace.recomputed)} {summary.unit}s "
        "recomputed. "
        "Keys: plus and minus zoom, arrows move, 0 shows all, P goes to the peak, comma and full stop step through ops."
    )
    picture = f"<noscript>{liveness_svg(summary, bins=240)}</noscript>" if with_picture else ""
    return f"""<figure>
<h3>What is live when</h3>
{_canvas("chart", label)}
{_legend(summary)}
{_other_levels(summary)}
<canvas class="map" aria-hidden="true"></canvas>
<div class="bar" role="toolbar" aria-label="The chart">{_buttons()}
<label>axis <select class="axis"><option value="time">time</option>
<option value="count">ops</option></select></label></div>
<p class="soft">Drag, wheel or pinch; or click the chart and press <kbd>+</kbd> <kbd>-</kbd> to zoom, <kbd>←</kbd>
<kbd>→</kbd> to move, <kbd>0</kbd> for all, <kbd>P</kbd> for the peak, <kbd>,</kbd> <kbd>.</kbd> for one op.</p>
<p class="trouble" hidden></p>
{picture}
</figure>"""


def _other_levels(summary: Summary) -> str:
    """The chart of states in levels other than the device, if there are any."""
    peaks = {level: max(sizes) for level, sizes in summary.timeline.rows.elsewhere.items() if any(sizes)}
    if not peaks:
        return ""
    words = ", ".join(f"{level} holds up to {bytes_text(size)}" for level, size in peaks.items())
    keys = "".join(_key(f"level{i % 3}", level) for i, level in enumerate(peaks))
    canvas = f'<canvas class="levels" role="img" aria-label="{escape(words)}"></canvas>'
    return f'<h3>States in other levels: {escape(words)}</h3>{canvas}<div class="legend">{keys}</div>'


def _schedule_figure() -> str:
    """The chart of units over time, with the controls that replay it."""
    label = (
        "Steps over time: forward and recomputation go up, backward goes down, kept states are horizontal lines. "
        "Use the slider below to replay."
    )
    return f"""<figure>
<h3>The schedule: which step runs when</h3>
{_phase_legend()}
{_canvas("stairs", label)}
<div class="bar"><button type="button" class="play">Play</button>
<button type="button" data-do="previous" aria-label="previous op">◀ op</button>
<input type="range" class="replay" min="0" max="0" value="0" aria-label="replay: which op">
<button type="button" data-do="next" aria-label="next op">op ▶</button></div>
<output class="readout" aria-live="polite"></output>
</figure>"""


def _canvas(name: str, label: str) -> str:
    return (
        f'<div class="stage"><canvas class="{name}" tabindex="0" role="img" aria-label="{escape(label)}"></canvas>'
        '<div class="tip" hidden></div></div>'
    )


def _legend(summary: Summary) -> str:
    at_peak, trace = summary.timeline.at_peak, summary.subject.trace
    words = {"state": "states", "tape": "tapes", "cotangent": "cotangents"}
    keys = [_key(kind, f"{word}, {bytes_text(at_peak.get(kind, 0))} at the peak") for kind, word in words.items()]
    if summary.limit:
        keys.append(_key("budget", f"{summary.limit_word} {bytes_text(summary.limit)}", stroke=True))
    if summary.plan_bytes and summary.requested_bytes and summary.plan_bytes < summary.requested_bytes:
        keys.append(_key("soft", f"{bytes_text(summary.plan_bytes)} of it for states and tapes", stroke=True))
    if summary.subject.predicted is not None:
        keys.append(_key("ink", "predicted bytes (dashed)", stroke=True))
    if trace.totals.allocated is not None:
        keys.append(_key("allocated", "allocated, as the allocator says", stroke=True))
    if trace.always:
        key = _key("always", f"always live {bytes_text(sum(trace.always.values()))}")
        keys.append(f'<label><input type="checkbox" class="always"> {key}</label>')
    return f'<div class="legend">{"".join(keys)}</div>'


def _key(colour: str, text: str, *, stroke: bool = False) -> str:
    shape = "stroke" if stroke else "patch"
    return f'<span class="{shape}" style="--c:var(--{colour})">{escape(text)}</span>'


def _phase_legend() -> str:
    keys = [_key(phase, phase) for phase in ("forward", "recompute", "backward")]
    keys.append(_key("state", "kept states", stroke=True))
    return f'<div class="legend">{"".join(keys)}</div>'


def _buttons() -> str:
    return "".join(
        f'<button type="button" data-do="{do}" title="key {key}">{text}</button>' for do, text, key in _BUTTONS
    )


def _pictures(summary: Summary) -> str:
    histogram = f"<h3>How often steps run</h3>{histogram_svg(summary)}"
    figures = [f"<figure>{summary.in_units(histogram)}</figure>"]
    if summary.curve is not None:
        factor = summary.curve.largest_factor
        planned = " planned likewise" if summary.curve.best_in_same_memory is None else ' by the "auto" planner'
        bound = f", at most {ceil(100 * factor) / 100:g} times the bound" if 1 < factor < inf else ""
        how = f" Other points are{planned}{bound}."
        figures.append(
            f"<figure><h3>What more memory would buy</h3>"
            f"{summary.in_units(memory_curve_svg(summary.curve))}"
            f"<figcaption>Forward runs of a {summary.unit} against memory.{how}</figcaption></figure>"
        )
    return "".join(figures)


def table_html(table: Table) -> str:
    """A table with its caption and note."""
    names = [f'<th scope="col"{_side(table, i)}>{escape(name)}</th>' for i, name in enumerate(table.head)]
    head = f"<thead><tr>{''.join(names)}</tr></thead>" if any(table.head) else ""
    rows = "".join(f"<tr>{_row(table, row)}</tr>" for row in table.rows)
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    caption = f"<caption>{escape(table.title)}</caption>"
    name = escape(table.title)
    above = f'<p class="headline">{escape(table.headline)}</p>' if table.headline else ""
    above += f'<figure class="wide">{table.picture}</figure>' if table.picture else ""
    above += f'<figure class="narrow">{table.narrow}</figure>' if table.narrow else ""
    tips = "".join(f"<li>{escape(tip)}</li>" for tip in table.tips)
    above += f'<ul class="tips">{tips}</ul>' if tips else ""
    return above + (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table>{caption}{head}'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _row(table: Table, row: tuple[str, ...]) -> str:
    cells = "".join(f"<td{_side(table, i)}>{_cell(cell)}</td>" for i, cell in enumerate(row[1:], 1))
    return f'<th scope="row">{escape(row[0])}</th>{cells}'


def _cell(cell: str) -> str:
    if isinstance(cell, Folded) and cell.more:
        return f"<details><summary>{escape(cell)}</summary>{escape(cell.more)}</details>"
    return escape(cell)


def _side(table: Table, column: int) -> str:
    if not table.numbers or not column:
        return ""
    return ' class="t"' if table.head[column] in TEXT_COLUMNS else ' class="n"'
