"""The page: one HTML file that works offline. Python writes every word of it, escaped; the scripts only draw.

A content security policy in its head forbids network access, and every script but our own.
"""

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape

from remat.ops import OP_TABLE
from remat.reporting.cards import cards_of
from remat.reporting.headline import headline_of
from remat.reporting.html_section import overview_html, section_html, table_html
from remat.reporting.page_data import fit_to_page, page_view
from remat.reporting.summary import Summary
from remat.reporting.svg_liveness import liveness_svg
from remat.reporting.table import Table
from remat.reporting.timeline import PHASES

__all__ = ["MARK", "fragment_of", "page_of"]

MARK = "<!-- a report by remat -->"  # the second line of every page, which identifies it as a report
SCRIPTS = ("data.js", "draw.js", "liveness.js", "levels.js", "staircase.js", "main.js")
_LEFT = ' style="text-align:left"'


def page_of(summaries: list[Summary], title: str, version: str, tables: list[Table]) -> str:
    """The text of the page; the tables come first, or after the charts if there is only one subject."""
    script, style = _asset("script"), _asset("style")
    # Only our script runs, and it evaluates no text; 'unsafe-eval' is for programs that drive the browser, as in tests.
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}' 'unsafe-eval'"
    )
    fitted = [fit_to_page(summary, len(summaries)) for summary in summaries]
    summaries = [summary for summary, _ in fitted]
    views = [page_view(summary, columns) for summary, columns in fitted]
    ops = [spec.word for spec in sorted(OP_TABLE, key=lambda spec: spec.code)]
    data = {"version": 1, "ops": ops, "phases": PHASES, "views": views}
    body = [f"<h1>{escape(title)}</h1>"]
    if len(summaries) == 1:
        body.append(f'<p class="soft">{escape(_subtitle(summaries[0]))}</p>')
    if len(summaries) > 1:
        body.append(overview_html(summaries))
    if len(summaries) != 1:
        body += [table_html(table) for table in tables]
    body += [section_html(summary, number, len(summaries)) for number, summary in enumerate(summaries)]
    if len(summaries) == 1:  # the chart comes first
        body += [table_html(table) for table in tables]
    body.append(f"<footer><p>Written by remat {escape(version)}. This page is one file and loads nothing.</p></footer>")
    # "<" is escaped, so that no name in the data can end the script element.
    data_text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    lines = [
        "<!doctype html>",
        MARK,
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>",
        *body,
        "</main>",
        f'<script type="application/json" id="remat-data">{data_text}</script>',
        f"<script>{script}</script>",
        "</body></html>\n",
    ]
    return "\n".join(lines)


def fragment_of(summaries: list[Summary]) -> str:
    """What notebooks show: the headline, the picture of live bytes and the cards, without scripts."""
    blocks = []
    for summary in summaries:
        rows = [(card.question, card.answer, card.detail) for card in cards_of(summary)]
        blocks.append(f"<p><b>{escape(summary.label)}</b><br>{escape(str(headline_of(summary)))}</p>")
        blocks.append(liveness_svg(summary))
        cells = "".join(
            f"<tr><th{_LEFT}>{escape(question)}</th><td{_LEFT}><b>{escape(answer)}</b></td>"
            f"<td{_LEFT}>{escape(detail)}</td></tr>"
            for question, answer, detail in rows
        )
        blocks.append(f"<table>{cells}</table>")
    return f"<div>{''.join(blocks)}</div>"


def _subtitle(summary: Summary) -> str:
    source = f"; the step is at {summary.subject.source}" if summary.subject.source else ""
    framework = f" on {summary.subject.framework}" if summary.subject.framework else ""
    origin = "measured" if summary.subject.trace.measured else "simulated"
    return f"{summary.label} ({origin}{framework}{source})"


@cache
def _asset(name: str) -> str:
    from importlib.resources import files  # imported here to keep `import remat` fast

    folder = files("remat.reporting") / "page"
    if name == "style":
        return (folder / "page.css").read_text(encoding="utf-8")
    scripts = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "(() => {\n" + "\n".join(scripts) + "})();\n"
