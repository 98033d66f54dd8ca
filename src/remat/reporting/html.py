"""The page: one HTML file that opens offline. Python writes every word of it, escaped; the scripts only draw.

In: summaries. Out: the text of the page. A policy in its head forbids the network, and every script but our own.
"""

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from math import ceil, inf

from remat.reporting.cards import cards_of
from remat.reporting.page_data import fit_to_page, page_view, top_of
from remat.reporting.summary import Summary
from remat.reporting.svg import histogram_svg, liveness_svg, memory_curve_svg
from remat.reporting.tables import RUNS, Table, tables_of
from remat.units import bytes_text, count_text

__all__ = ["MARK", "fragment_of", "page_of"]

MARK = "<!-- a report by remat -->"  # in the second line of every page, so that ours are known again
SCRIPTS = ("data.js", "draw.js", "liveness.js", "staircase.js", "main.js")
_LEFT = ' style="text-align:left"'
_BUTTONS = (
    ("in", "Zoom in", "+"),
    ("out", "Zoom out", "-"),
    ("fit", "Show all", "0"),
    ("peak", "Go to peak", "P"),
    ("left", "Left", "←"),
    ("right", "Right", "→"),
)


def page_of(summaries: list[Summary], title: str, version: str, tables: list[Table]) -> str:
    """The whole page; the tables come first."""
    script, style = _asset("script"), _asset("style")
    # No script but ours runs, and it evaluates no text; whoever drives a browser over the page may.
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}' 'unsafe-eval'"
    )
    packed_views = [fit_to_page(summary, len(summaries)) for summary in summaries]
    summaries = [summary for summary, _ in packed_views]
    data = {"version": 1, "views": [page_view(summary, columns) for summary, columns in packed_views]}
    body = [f"<h1>{escape(title)}</h1>"]
    if len(summaries) == 1:
        body.append(f'<p class="soft">{escape(_subtitle(summaries[0]))}</p>')
    body += [_table(table) for table in tables]
    if len(summaries) > 1:
        body.append(_overview(summaries))
    body += [_section(summary, number, len(summaries)) for number, summary in enumerate(summaries)]
    body.append(f"<footer><p>Written by remat {escape(version)}. This page is one file and loads nothing.</p></footer>")
    # A name in the data cannot end its script element: no "<" is left in it.
    packed = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    lines = [
        "<!doctype html>",
        MARK,
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>",
        *body,
        "</main>",
        f'<script type="application/json" id="remat-data">{packed}</script>',
        f"<script>{script}</script>",
        "</body></html>\n",
    ]
    return "\n".join(lines)


def fragment_of(summaries: list[Summary]) -> str:
    """What notebooks show: cards, the picture of live bytes and the tips, without scripts."""
    parts = []
    for summary in summaries:
        rows = [(card.question, card.answer, card.detail) for card in cards_of(summary)]
        parts.append(f"<p><b>{escape(summary.label)}</b></p>")
        parts.append(liveness_svg(summary))
        cells = "".join(
            f"<tr><th{_LEFT}>{escape(question)}</th><td{_LEFT}><b>{escape(answer)}</b></td>"
            f"<td{_LEFT}>{escape(detail)}</td></tr>"
            for question, answer, detail in rows
        )
        parts.append(f"<table>{cells}</table>")
    return f"<div>{''.join(parts)}</div>"


def _overview(summaries: list[Summary]) -> str:
    """All charts at a glance, with the same bytes to an inch."""
    top, bins = max(map(top_of, summaries)), 240 if len(summaries) == 2 else 120
    figures = "".join(
        f"<figure><h3>{escape(summary.label)}</h3>{liveness_svg(summary, 540, 220, top, bins)}</figure>"
        for summary in summaries
    )
    return f'<h2>Live memory, on one scale</h2><div class="pair">{figures}</div>'


def _section(summary: Summary, number: int, count: int) -> str:
    name = f"v{number}"
    tables = [table for table in tables_of(summary) if table.title != RUNS]  # these are drawn
    trace = summary.subject.trace
    heading = f'<h2 id="{name}">{escape(summary.label)}</h2>' if count > 1 else f'<h2 id="{name}">At a glance</h2>'
    cards = "".join(
        f'<dl class="card"><dt>{escape(card.question)}</dt><dd class="answer">{escape(card.answer)}</dd>'
        f'<dd class="detail">{escape(card.detail)}</dd></dl>'
        for card in cards_of(summary)
    )
    label = (
        f"Live bytes over time. Peak {bytes_text(trace.peak)}, {count_text(trace.recomputed)} steps recomputed. "
        "Keys: plus and minus zoom, arrows move, 0 shows all, P goes to the peak, comma and full stop step through ops."
    )
    still = f"<noscript>{liveness_svg(summary, bins=240)}</noscript>" if count == 1 else ""  # else it is above
    stairs = (
        "Steps over time: forward and recomputation go up, backward goes down, kept states are horizontal lines. "
        "Use the slider below to replay."
    )
    return f"""
<section class="view" aria-labelledby="{name}">
{heading}
{f'<p class="warning">{escape(summary.subject.warning)}</p>' if summary.subject.warning else ""}
<div class="cards">{cards}</div>
<figure>
<h3>What is live when</h3>
{_legend(summary)}
{_canvas("chart", label)}
<canvas class="map" aria-hidden="true"></canvas>
<div class="bar" role="toolbar" aria-label="The chart">{_buttons()}
<label>axis <select class="axis"><option value="time">time</option>
<option value="count">ops</option></select></label></div>
<p class="soft">Drag, wheel or pinch; or click the chart and press <kbd>+</kbd> <kbd>-</kbd> to zoom, <kbd>←</kbd>
<kbd>→</kbd> to move, <kbd>0</kbd> for all, <kbd>P</kbd> for the peak, <kbd>,</kbd> <kbd>.</kbd> for one op.</p>
<p class="trouble" hidden></p>
{still}
</figure>
<figure>
<h3>The schedule: which step runs when</h3>
{_phase_legend()}
{_canvas("stairs", stairs)}
<div class="bar"><button type="button" class="play">Play</button>
<button type="button" data-do="previous" aria-label="previous op">◀ op</button>
<input type="range" class="replay" min="0" max="0" value="0" aria-label="replay: which op">
<button type="button" data-do="next" aria-label="next op">op ▶</button></div>
<output class="readout" aria-live="polite"></output>
</figure>
<div class="pair">{_pictures(summary)}</div>
<h3>Tips</h3>
<ul class="tips">{"".join(f"<li>{escape(tip)}</li>" for tip in summary.tips) or "<li>none</li>"}</ul>
{"".join(map(_table, tables))}
<ul class="soft">{"".join(f"<li>{escape(note)}</li>" for note in summary.notes)}</ul>
</section>"""


def _canvas(name: str, label: str) -> str:
    return (
        f'<div class="stage"><canvas class="{name}" tabindex="0" role="img" aria-label="{escape(label)}"></canvas>'
        '<div class="tip" hidden></div></div>'
    )


def _subtitle(summary: Summary) -> str:
    source = f"; the step is at {summary.subject.source}" if summary.subject.source else ""
    framework = f" on {summary.subject.framework}" if summary.subject.framework else ""
    kind = "measured" if summary.subject.trace.measured else "simulated"
    return f"{summary.label} ({kind}{framework}{source})"


def _legend(summary: Summary) -> str:
    at, trace = summary.timeline.at_peak, summary.subject.trace
    words = {"state": "states", "tape": "tapes", "cotangent": "cotangents"}
    parts = [_key(kind, f"{word}, {bytes_text(at.get(kind, 0))} at the peak") for kind, word in words.items()]
    if summary.budget:
        parts.append(_key("budget", f"budget {bytes_text(summary.budget)}", stroke=True))
    if summary.share and summary.budget and summary.share < summary.budget:
        parts.append(_key("soft", f"{bytes_text(summary.share)} of it for states and tapes", stroke=True))
    if summary.subject.predicted is not None:
        parts.append(_key("ink", "predicted bytes (dashed)", stroke=True))
    if trace.totals.allocated is not None:
        parts.append(_key("allocated", "allocated, as the allocator says", stroke=True))
    if trace.always:
        key = _key("always", f"always live {bytes_text(sum(trace.always.values()))}")
        parts.append(f'<label><input type="checkbox" class="always"> {key}</label>')
    return f'<div class="legend">{"".join(parts)}</div>'


def _key(colour: str, text: str, *, stroke: bool = False) -> str:
    shape = "stroke" if stroke else "patch"
    return f'<span class="{shape}" style="--c:var(--{colour})">{escape(text)}</span>'


def _phase_legend() -> str:
    parts = [_key(phase, phase) for phase in ("forward", "recompute", "backward")]
    parts.append(_key("state", "kept states", stroke=True))
    return f'<div class="legend">{"".join(parts)}</div>'


def _buttons() -> str:
    return "".join(
        f'<button type="button" data-do="{do}" title="key {key}">{text}</button>' for do, text, key in _BUTTONS
    )


def _pictures(summary: Summary) -> str:
    parts = [f"<figure><h3>How often steps run</h3>{histogram_svg(summary)}</figure>"]
    if summary.tradeoff is not None:
        factor, rule = summary.tradeoff.factor, summary.tradeoff.same is not None
        who = ' by the "auto" planner' if rule else ""
        near = f", at most {ceil(100 * factor) / 100:g} times the bound" if 1 < factor < inf else ""
        how = f" Other points are{who or ' planned likewise'}{near}."
        parts.append(
            f"<figure><h3>What more memory would buy</h3>{memory_curve_svg(summary.tradeoff)}"
            f"<figcaption>Forward runs of a step against memory.{how}</figcaption></figure>"
        )
    return "".join(parts)


def _table(table: Table) -> str:
    names = [f'<th scope="col"{_side(table, i)}>{escape(name)}</th>' for i, name in enumerate(table.head)]
    head = f"<thead><tr>{''.join(names)}</tr></thead>" if any(table.head) else ""
    rows = "".join(f"<tr>{_row(table, row)}</tr>" for row in table.rows)
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<div class="scroll"><table>{caption}{head}<tbody>{rows}</tbody></table></div>{note}'


def _row(table: Table, row: tuple[str, ...]) -> str:
    cells = "".join(f"<td{_side(table, i)}>{escape(cell)}</td>" for i, cell in enumerate(row[1:], 1))
    return f'<th scope="row">{escape(row[0])}</th>{cells}'


def _side(table: Table, column: int) -> str:
    return ' class="n"' if table.numbers and column and table.head[column] != "where" else ""


@cache
def _asset(kind: str) -> str:
    from importlib.resources import files  # here, since it makes importing remat slow

    folder = files("remat.reporting") / "page"
    if kind == "style":
        return (folder / "page.css").read_text(encoding="utf-8")
    parts = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "(() => {\n" + "\n".join(parts) + "})();\n"
