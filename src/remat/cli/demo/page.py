"""The page of the demo: the table and the plan as one plain HTML file that opens offline."""

from html import escape

__all__ = ["MARK", "render"]

MARK = "<!-- written by remat demo -->"

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; }
"""


def render(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]], plan: str) -> str:
    """The whole page; everything in it is escaped."""
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"""<!doctype html>
{MARK}
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body><h1>{escape(title)}</h1>
<table><thead><tr>{heads}</tr></thead><tbody>
{body}
</tbody></table>
<h2>The plan</h2><pre>{escape(plan)}</pre>
</body></html>
"""
