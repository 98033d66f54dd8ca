"""Pictures: what is live when, how often steps run, and the memory curve, as SVG without scripts.

In: a summary. Out: text of an `<svg>` element. Colours are the page's CSS variables, with default values for files that
contain only the picture.
"""

import re
from html import escape
from math import log

from remat.planners.memory_curve import MemoryCurve
from remat.reporting.summary import Summary
from remat.reporting.timeline import PHASES
from remat.schedule import Record
from remat.units import bytes_text, count_text

__all__ = ["COLOURS", "below_each_other", "histogram_svg", "liveness_svg", "memory_curve_svg", "standalone"]

# Okabe & Ito's palette, whose colours the colour-blind can distinguish.
COLOURS = {
    "state": "#0072b2",
    "tape": "#e69f00",
    "cotangent": "#009e73",
    "forward": "#56b4e9",
    "recompute": "#d55e00",
    "backward": "#cc79a7",
    "move": "#999999",
    "budget": "#c1121f",
}
_KINDS = ("state", "tape", "cotangent")
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def liveness_svg(summary: Summary, width: int = 720, height: int = 240, top: int | None = None, bins: int = 480) -> str:
    """Live bytes by kind over time, the peak and the budget marked; `top` is the most bytes that the axis shows."""
    timeline, trace = summary.timeline, summary.subject.trace
    left, right, upper, lower = 74, 12, 26, 34
    inner, tall = width - left - right, height - upper - lower
    budget = summary.limit or 0
    most = top or max(trace.peak, budget if budget <= 2 * trace.peak else 0, 1)
    scale = tall / (1.08 * most)
    bins = min(bins, inner)
    live = timeline.envelope(bins)
    elements = [_title(f"Live bytes over time: {_sentence(summary)}")]
    elements += _frame(left, upper, inner, tall)
    floor = [0] * bins
    for i, kind in enumerate(_KINDS):
        ceiling = [low + sizes[i] for low, sizes in zip(floor, live, strict=True)]
        if any(a != b for a, b in zip(floor, ceiling, strict=True)):
            shape = _area(floor, ceiling, left, upper + tall, inner / bins, scale)
            elements.append(f'<path d="{shape}" fill="{_colour(kind)}"><title>{kind}s</title></path>')
        floor = ceiling
    for value in _ticks(most):
        y = upper + tall - value * scale
        elements.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">{bytes_text(value)}</text>'
        )
        elements.append(f'<path d="M{left - 3} {y:.1f}h3" stroke="currentColor"/>')
    place = 0.0 if timeline.peak is None else _place(summary)
    if budget and budget <= 1.05 * most:
        y = upper + tall - budget * scale
        at, anchor = (left + 4, "start") if place > 0.5 else (left + inner, "end")  # where the peak's label is not
        elements.append(f'<path d="M{left} {y:.1f}h{inner}" stroke="{_colour("budget")}" stroke-dasharray="6 4"/>')
        words = f"{'budget' if summary.subject.limit is None else 'limit'} {bytes_text(budget)}"
        elements.append(
            f'<text x="{at}" y="{y - 4:.1f}" text-anchor="{anchor}" fill="{_colour("budget")}">{words}</text>'
        )
    if timeline.peak is not None:
        x = left + inner * place
        y = upper + tall - trace.peak * scale
        anchor = "end" if x > left + inner / 2 else "start"
        elements.append(f'<path d="M{x:.1f} {y:.1f}V{upper + tall}" stroke="currentColor" stroke-dasharray="2 3"/>')
        elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="currentColor"/>')
        shift = -8 if anchor == "end" else 8
        elements.append(
            f'<text x="{x + shift:.1f}" y="{max(12, y - 6):.1f}" text-anchor="{anchor}" font-weight="bold" '
            f'fill="currentColor">peak {bytes_text(trace.peak)}</text>'
        )
    elements.append(_phases(summary, left, upper + tall + 3, inner))
    elements += _legend(left, height - 8)
    return _svg(width, height, elements)


def histogram_svg(summary: Summary, width: int = 420, height: int = 200) -> str:
    """How many steps run once, twice, and so on."""
    histogram = summary.timeline.histogram
    left, right, upper, lower = 64, 10, 12, 34
    inner, tall = width - left - right, height - upper - lower
    bars = _bars(histogram)
    most = max((units for _, units in bars), default=1) or 1
    step = inner / max(1, len(bars))
    elements = [
        _title("How often steps run: " + ", ".join(f"{units} steps {times} times" for times, units in bars[:8]))
    ]
    elements += _frame(left, upper, inner, tall)
    for i, (times, units) in enumerate(bars):
        size = tall * units / most
        x = left + i * step + 0.1 * step
        colour = "forward" if times == "1" else "recompute"
        elements.append(
            f'<rect x="{x:.1f}" y="{upper + tall - size:.1f}" width="{0.8 * step:.1f}" height="{size:.1f}" '
            f'fill="{_colour(colour)}"><title>{count_text(units)} steps run {times} times</title></rect>'
        )
        if len(bars) <= 12 or i % (len(bars) // 8) == 0:
            elements.append(_label(x + 0.4 * step, height - 18, times))
    elements.append(
        f'<text x="{left - 6}" y="{upper + 10}" text-anchor="end" fill="currentColor">{count_text(most)}</text>'
    )
    elements.append(f'<text x="{left - 6}" y="{upper + tall}" text-anchor="end" fill="currentColor">0 steps</text>')
    elements.append(_label(left + inner / 2, height - 3, "times a step is run"))
    return _svg(width, height, elements)


def memory_curve_svg(curve: MemoryCurve, width: int = 420, height: int = 240) -> str:
    """Forward runs of a step against memory, both logarithmic; the chosen plan is marked."""
    left, right, upper, lower = 64, 16, 22, 40
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
    elements = [_title(f"Memory against forward steps: {sentence}"), *_frame(left, upper, inner, tall)]
    line = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
    elements.append(f'<path d="{line}" fill="none" stroke="{_colour("state")}" stroke-width="2"/>')
    for point, ratio, (x, y) in zip(points, steps, places, strict=True):
        words = f"{curve.text(point.budget)}: {ratio:.2f} runs of a step, {count_text(point.forward_steps)} in all"
        size, colour = (7, "recompute") if point is chosen else (3.5, "state")
        elements.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{_colour(colour)}"><title>{words}</title></circle>'
        )
    x, y = places[points.index(chosen)]
    # The curve falls, so there is room above it to the right; near the right end, higher up.
    anchor, up = ("end", 34) if x > left + 0.6 * inner else ("start", 12)
    elements.append(
        f'<text x="{x + (4 if anchor == "end" else 8):.1f}" y="{max(upper + 12, y - up):.1f}" text-anchor="{anchor}" '
        f'font-weight="bold" fill="currentColor">this plan: {curve.text(chosen.budget)}</text>'
    )
    for ratio in _nice_ratios(high_y):
        y = place(1, ratio)[1]
        elements.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">{ratio:g}x</text>')
    ends = ((left, "start", points[0]), (left + inner, "end", points[-1]))
    elements += [
        f'<text x="{x}" y="{height - 22}" text-anchor="{anchor}" fill="currentColor">{curve.text(point.budget)}</text>'
        for x, anchor, point in ends
    ]
    elements.append(_label(left + inner / 2, height - 5, "memory; upwards: how often a step runs"))
    return _svg(width, height, elements)


def below_each_other(pictures: list[str], labels: list[str], width: int = 720, height: int = 240) -> str:
    """Several pictures in one, each below its label."""
    elements, row_height = [], height + 26
    for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        shown = label if len(label) <= 100 else label[:99] + "…"
        elements.append(
            f'<text x="8" y="{i * row_height + 17}" font-weight="bold" fill="currentColor">{escape(shown)}</text>'
        )
        elements.append(picture.replace("<svg", f'<svg y="{i * row_height + 22}"', 1))
    return _svg(width, row_height * len(pictures), elements)


def standalone(picture: str, *, plain: bool = False) -> str:
    """A picture as a file, with a background for light and dark themes; if `plain`, in fixed colours."""
    dark = "--budget:#ff6b6b;--state:#3d9bd9;color:#e8e8e8;background:#16181c"
    style = f"<style>svg{{color:#1b1b1b;background:#fff}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    if plain:  # for renderers without CSS variables
        picture = re.sub(r"var\(--\w+,(#\w+)\)", r"\1", picture).replace("currentColor", "#1b1b1b")
        style = '<rect width="100%" height="100%" fill="#ffffff"/>'
    head, _, body = picture.partition(">")
    head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}>{style}{body}\n'


def _svg(width: int, height: int, elements: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" {_FONT} style="max-width:100%;height:auto">{"".join(elements)}</svg>'
    )


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="currentColor">{text}</text>'


def _colour(name: str) -> str:
    return f"var(--{name},{COLOURS[name]})"


def _frame(x: int, y: int, width: int, height: int) -> list[str]:
    return [f'<path d="M{x} {y}v{height}h{width}" fill="none" stroke="currentColor" stroke-opacity=".5"/>']


def _area(floor: list[int], ceiling: list[int], x: float, y: float, step: float, scale: float) -> str:
    """The path between two step functions."""
    upper = "".join(f"V{y - value * scale:.1f}h{step:.3f}" for value in ceiling)
    lower = "".join(f"V{y - value * scale:.1f}h{-step:.3f}" for value in reversed(floor))
    return f"M{x:.1f} {y - floor[0] * scale:.1f}{upper}{lower}Z"


def _phases(summary: Summary, x: float, y: float, width: float) -> str:
    """A strip with the colours of the phases over time."""
    bins = 160
    doing, step = summary.timeline.doing(bins), width / bins
    elements, start = [], 0
    for end in range(1, bins + 1):
        if end == bins or doing[end] != doing[start]:
            phase = PHASES[doing[start]]
            elements.append(
                f'<rect x="{x + start * step:.1f}" y="{y}" width="{(end - start) * step:.2f}" height="5" '
                f'fill="{_colour(phase)}"><title>{phase}</title></rect>'
            )
            start = end
    return "".join(elements)


def _legend(x: int, y: int) -> list[str]:
    elements = []
    for name in (*_KINDS, *PHASES[:3]):
        elements.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{_colour(name)}"/>')
        elements.append(f'<text x="{x + 14}" y="{y}" fill="currentColor">{name}</text>')
        x += 24 + 7 * len(name)
    return elements


def _ticks(most: int) -> list[int]:
    """Two to four round numbers of bytes up to `most`."""
    unit = 1
    while most / unit > 4:
        unit *= 2 if most / unit <= 8 or unit.bit_length() > 60 else 4
    return [unit * i for i in range(1, int(most / unit) + 1)]


def _nice_ratios(high: float) -> list[float]:
    """A few round ratios up to e to the `high`."""
    few = (1, 1.5, 2, 3, 5, 10, 20) if high < log(30) else (1, 2, 5, 20, 100, 1000)
    return [ratio for ratio in (*few, *(10**k for k in range(4, 13, 2))) if log(ratio) <= high + 1e-9]


def _place(summary: Summary) -> float:
    """Where the peak is on the axis, from 0 to 1: at the end of a range that is recorded, else where its op begins."""
    timeline, peak = summary.timeline, summary.timeline.peak
    assert peak is not None
    return timeline.place(peak.row)[isinstance(timeline.rows.op[peak.row], Record)]


def _sentence(summary: Summary) -> str:
    trace = summary.subject.trace
    return f"peak {bytes_text(trace.peak)}, {count_text(trace.recomputed)} steps recomputed"


def _bars(histogram: dict[int, int]) -> list[tuple[str, int]]:
    """Bars of a histogram; if there are many, neighbours share one."""
    times = sorted(histogram)
    if len(times) <= 24:
        return [(count_text(t), histogram[t]) for t in times]
    size = -(-len(times) // 24)
    groups = [times[i : i + size] for i in range(0, len(times), size)]
    return [(f"{group[0]}-{group[-1]}", sum(histogram[t] for t in group)) for group in groups]
