"""Pictures as SVG without scripts: how often steps run, the memory curve, and pictures as files.

Each function returns the text of an `<svg>` element. Colours are the page's CSS variables, with defaults for files that
contain only the picture.
"""

import re
from html import escape
from math import log

from remat.planners.memory_curve import MemoryCurve
from remat.reporting.summary import Summary
from remat.reporting.svg_parts import colour, frame, label, on_paper, side_title, svg, title
from remat.units import count_text, number_text

__all__ = ["below_each_other", "histogram_svg", "memory_curve_svg", "standalone"]


def histogram_svg(summary: Summary, width: int = 420, height: int = 200) -> str:
    """How many steps run once, twice, and so on."""
    histogram = summary.timeline.histogram
    left, right, upper, lower = 72, 10, 12, 40
    inner, tall = width - left - right, height - upper - lower
    bars = _bars(histogram)
    most = max((units for _, units in bars), default=1) or 1
    step = inner / max(1, len(bars))
    elements = [title("How often steps run: " + ", ".join(f"{units} steps {times} times" for times, units in bars[:8]))]
    elements += frame(left, upper, inner, tall)
    for i, (times, units) in enumerate(bars):
        size = tall * units / most
        x = left + i * step + 0.1 * step
        kind = "forward" if times == "1" else "recompute"
        elements.append(
            f'<rect x="{x:.1f}" y="{upper + tall - size:.1f}" width="{0.8 * step:.1f}" height="{size:.1f}" '
            f'fill="{colour(kind)}"><title>{count_text(units)} steps run {times} times</title></rect>'
        )
        if len(bars) <= 12 or i % (len(bars) // 8) == 0:
            elements.append(label(x + 0.4 * step, height - 23, times))
    elements.append(
        f'<text x="{left - 6}" y="{upper + 10}" text-anchor="end" fill="currentColor">{count_text(most)}</text>'
    )
    elements.append(f'<text x="{left - 6}" y="{upper + tall}" text-anchor="end" fill="currentColor">0</text>')
    elements.append(side_title(upper + tall / 2, "steps"))
    elements.append(label(left + inner / 2, height - 5, "times a step is run"))
    return svg(width, height, elements)


def memory_curve_svg(curve: MemoryCurve, width: int = 420, height: int = 240) -> str:
    """Forward runs per step against memory, both on logarithmic scales; the chosen plan is marked."""
    left, right, upper, lower = 96, 16, 22, 44
    inner, tall = width - left - right, height - upper - lower
    points, chosen = curve.points, curve.chosen
    steps = [max(1.0, point.forward_steps / curve.units) for point in points]
    low_x, high_x = log(points[0].budget or 1), log(points[-1].budget or 1)
    high_y = log(max(2.0, *steps))

    def place(budget: int, ratio: float) -> tuple[float, float]:
        x = (log(max(1, budget)) - low_x) / (high_x - low_x) if high_x > low_x else 0.5
        return left + inner * x, upper + tall * (1 - log(max(1.0, ratio)) / high_y)

    places = [place(point.budget, ratio) for point, ratio in zip(points, steps, strict=True)]
    sentence = f"the plan runs each step {chosen.forward_steps / curve.units:.2f} times in {curve.text(chosen.budget)}"
    elements = [title(f"Memory against forward steps: {sentence}"), *frame(left, upper, inner, tall)]
    line = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
    elements.append(f'<path d="{line}" fill="none" stroke="{colour("state")}" stroke-width="2"/>')
    for point, ratio, (x, y) in zip(points, steps, places, strict=True):
        words = f"{curve.text(point.budget)}: {ratio:.2f} runs of a step, {count_text(point.forward_steps)} in all"
        size, kind = (7, "recompute") if point is chosen else (3.5, "state")
        elements.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour(kind)}"><title>{words}</title></circle>'
        )
    x, y = places[points.index(chosen)]
    # The curve falls, so there is room for words above it to the right; near the right end, they go higher up.
    anchor, up = ("end", 34) if x > left + 0.6 * inner else ("start", 12)
    words = f"this plan: {curve.text(chosen.budget)}"
    shift = 4 if anchor == "end" else 8
    elements.append(on_paper(x + shift, max(upper + 12, y - up), words, anchor, "currentColor", "bold"))
    for ratio in _nice_ratios(high_y):
        y, words = place(1, ratio)[1], f"{number_text(ratio)} times"
        elements.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">{words}</text>')
    elements += _budget_ticks(curve, left, inner, height - 23)
    elements.append(side_title(upper + tall / 2, "a step runs"))
    elements.append(label(left + inner / 2, height - 5, f"budget in {curve.unit}"))
    return svg(width, height, elements)


def _budget_ticks(curve: MemoryCurve, left: float, inner: float, y: float) -> list[str]:
    """The least and the largest budget, and one between them if there is room for it."""
    low, high = max(1, curve.points[0].budget), max(1, curve.points[-1].budget)
    middle = 2 ** round((log(low, 2) + log(high, 2)) / 2)
    x = left + inner * (log(middle / low) / log(high / low) if high > low else 0.5)
    marks = [(left, "start", low), (left + inner, "end", high)]
    if high > 8 * low:
        marks.append((x, "middle", middle))
    return [
        f'<text x="{at:.1f}" y="{y}" text-anchor="{anchor}" fill="currentColor">{curve.text(budget)}</text>'
        for at, anchor, budget in marks
    ]


def below_each_other(pictures: list[str], labels: list[str], heights: list[int], width: int = 720) -> str:
    """Several pictures in one, each below its label."""
    elements, y = [], 0
    for picture, name, height in zip(pictures, labels, heights, strict=True):
        shown = name if len(name) <= 100 else name[:99] + "…"
        elements.append(f'<text x="8" y="{y + 17}" font-weight="bold" fill="currentColor">{escape(shown)}</text>')
        elements.append(picture.replace("<svg", f'<svg y="{y + 22}"', 1))
        y += height + 26
    return svg(width, y, elements)


def standalone(picture: str, *, plain: bool = False) -> str:
    """A picture as a file, with a background for light and dark themes; if `plain`, in fixed colours."""
    dark = "--paper:#16181c;--budget:#ff6b6b;--state:#3d9bd9;color:#e8e8e8;background:#16181c"
    style = f"<style>svg{{color:#1b1b1b;background:#fff}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    if plain:  # for renderers without CSS variables
        picture = re.sub(r"var\(--\w+,(#\w+)\)", r"\1", picture).replace("currentColor", "#1b1b1b")
        style = '<rect width="100%" height="100%" fill="#ffffff"/>'
    head, _, body = picture.partition(">")
    head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}>{style}{body}\n'


def _nice_ratios(high: float) -> list[float]:
    """A few round ratios up to exp(`high`)."""
    few = (1, 1.5, 2, 3, 5, 10, 20) if high < log(30) else (1, 2, 5, 20, 100, 1000)
    return [ratio for ratio in (*few, *(10**k for k in range(4, 13, 2))) if log(ratio) <= high + 1e-9]


def _bars(histogram: dict[int, int]) -> list[tuple[str, int]]:
    """Bars of a histogram; if there are many, neighbours are joined."""
    times = sorted(histogram)
    if len(times) <= 24:
        return [(count_text(t), histogram[t]) for t in times]
    size = -(-len(times) // 24)
    groups = [times[i : i + size] for i in range(0, len(times), size)]
    return [(f"{group[0]}-{group[-1]}", sum(histogram[t] for t in group)) for group in groups]
