"""The SVG picture of live bytes over time: by kind, with the peak, the limit, the phases, and the other levels.

Labels are above the chart or have their own background, so that no line runs through them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from remat.reporting.headline import headline_of
from remat.reporting.summary import Summary
from remat.reporting.svg_parts import KINDS, area, colour, frame, label, on_paper, side_title, svg, ticks, title
from remat.reporting.timeline import PHASES
from remat.schedule import Record
from remat.units import bytes_text, count_text

__all__ = ["HEIGHT", "WIDTH", "height_of", "liveness_svg", "peak_label"]

WIDTH, HEIGHT = 720, 260
LEVELS = 64  # height in pixels of the panel with the states in other levels
LEFT, RIGHT, UPPER, LOWER = 88, 12, 40, 62


@dataclass(frozen=True)
class _Chart:
    """The position of the chart, and its pixels per byte."""

    width: int
    height: int
    most: int

    @property
    def inner(self) -> int:
        return self.width - LEFT - RIGHT

    @property
    def floor(self) -> int:
        return self.height - LOWER

    @property
    def scale(self) -> float:
        return (self.floor - UPPER) / (1.02 * self.most)

    def y(self, size: float) -> float:
        return self.floor - size * self.scale


def height_of(summary: Summary, height: int = HEIGHT) -> int:
    """The height of a summary's picture, with a panel for other levels if they hold states."""
    return height + (LEVELS if _elsewhere(summary) else 0)


def liveness_svg(
    summary: Summary, width: int = WIDTH, height: int = HEIGHT, top: int | None = None, bins: int = 480
) -> str:
    """Live bytes by kind over time, with the peak and the limit marked; `top` is the most bytes on the axis."""
    trace, limit = summary.subject.trace, summary.limit or 0
    most = top or max(trace.peak, limit if limit <= 2 * trace.peak else 0, 1)
    chart = _Chart(width, height, most)
    place = 0.0 if summary.timeline.peak is None else _place(summary)
    sentence = f"{headline_of(summary)}; {count_text(trace.recomputed)} {summary.unit}s recomputed"
    elements = [title(f"Live bytes over time: {sentence}")]
    elements += _areas(summary, chart, min(bins, chart.inner))
    elements += frame(LEFT, UPPER, chart.inner, chart.floor - UPPER)
    elements += _bytes_axis(chart)
    if limit and limit <= 1.05 * most:
        elements += _limit(summary, chart, limit, at_left=place > 0.5)
    if summary.timeline.peak is not None:
        elements += _peak(summary, chart, place)
    elements.append(_phases(summary, chart.floor + 3, chart.inner))
    elements += _time_axis(summary, chart)
    elements += _legend(chart.height - 8)
    elements += _levels(summary, chart)
    return svg(width, height_of(summary, height), elements)


def peak_label(summary: Summary) -> str:
    """The peak of states, tapes and cotangents that the chart draws; it says so if more was allocated."""
    more = headline_of(summary).total > summary.subject.trace.peak
    return bytes_text(summary.subject.trace.peak) + (" of states and tapes" if more else "")


def _areas(summary: Summary, chart: _Chart, bins: int) -> Iterator[str]:
    live, floor = summary.timeline.envelope(bins), [0] * bins
    for i, kind in enumerate(KINDS):
        ceiling = [low + sizes[i] for low, sizes in zip(floor, live, strict=True)]
        if any(a != b for a, b in zip(floor, ceiling, strict=True)):
            shape = area(floor, ceiling, LEFT, chart.floor, chart.inner / bins, chart.scale)
            yield f'<path d="{shape}" fill="{colour(kind)}"><title>{kind}s</title></path>'
        floor = ceiling


def _bytes_axis(chart: _Chart) -> Iterator[str]:
    for value in (0, *ticks(chart.most)):
        y, text = chart.y(value), bytes_text(value) if value else "0"
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">{text}</text>'
        yield f'<path d="M{LEFT - 3} {y:.1f}h3" stroke="currentColor"/>'
    yield side_title((UPPER + chart.floor) / 2, "live memory")


def _time_axis(summary: Summary, chart: _Chart) -> Iterator[str]:
    """Five ticks; if no op takes any time, the axis counts ops."""
    span, y = summary.timeline.span, chart.floor + 22
    for i in range(5):
        text = summary.time(i / 4 * span).removesuffix(f" {summary.unit} times")
        if not span:
            text = count_text(round(i / 4 * len(summary.timeline.rows)))
        anchor = ("start", "middle", "middle", "middle", "end")[i]
        x = LEFT + i / 4 * chart.inner
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>'
    timed = "time" if summary.subject.trace.timed else f"time (the forward of a {summary.unit} is 1)"
    words = timed if span else "ops"
    yield f'<g fill-opacity=".7">{label(LEFT + chart.inner / 2, y + 15, words)}</g>'


def _limit(summary: Summary, chart: _Chart, limit: int, *, at_left: bool) -> Iterator[str]:
    """The line of the limit, labelled at the side away from the peak."""
    y, red = chart.y(limit), colour("budget")
    yield f'<path d="M{LEFT} {y:.1f}h{chart.inner}" stroke="{red}" stroke-dasharray="6 4"/>'
    x, anchor = (LEFT + 6, "start") if at_left else (LEFT + chart.inner - 4, "end")
    yield on_paper(x, y - 6, f"{summary.limit_word} {bytes_text(limit)}", anchor, red)


def _peak(summary: Summary, chart: _Chart, place: float) -> Iterator[str]:
    """A dot at the peak, a dotted line down from it, and a label above the chart."""
    x, y = LEFT + chart.inner * place, chart.y(summary.subject.trace.peak)
    yield f'<path d="M{x:.1f} {y:.1f}V{chart.floor}" stroke="currentColor" stroke-dasharray="2 3"/>'
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="currentColor"/>'
    anchor = "end" if place > 0.5 else "start"
    yield on_paper(x, 14, f"peak {peak_label(summary)}", anchor, "currentColor", "bold")


def _phases(summary: Summary, y: float, width: float) -> str:
    """A strip with the colours of the phases over time."""
    bins = 160
    doing, step = summary.timeline.doing(bins), width / bins
    elements, start = [], 0
    for end in range(1, bins + 1):
        if end == bins or doing[end] != doing[start]:
            phase = PHASES[doing[start]]
            elements.append(
                f'<rect x="{LEFT + start * step:.1f}" y="{y}" width="{(end - start) * step:.2f}" height="5" '
                f'fill="{colour(phase)}"><title>{phase}</title></rect>'
            )
            start = end
    return "".join(elements)


def _legend(y: int) -> Iterator[str]:
    x = LEFT
    for name in (*KINDS, *PHASES[:3]):
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour(name)}"/>'
        yield f'<text x="{x + 14}" y="{y}" fill="currentColor">{name}</text>'
        x += 24 + 7 * len(name)


def _elsewhere(summary: Summary) -> dict[str, list[int]]:
    """Bytes of states over time in each level, other than the device, that holds any."""
    return {level: sizes for level, sizes in summary.timeline.rows.elsewhere.items() if any(sizes)}


def _levels(summary: Summary, chart: _Chart) -> Iterator[str]:
    """A panel below the chart: the states in each other level over time, as stacked areas."""
    levels = _elsewhere(summary)
    if not levels:
        return
    bins, timeline = min(240, chart.inner), summary.timeline
    sizes = {level: [0] * bins for level in levels}
    for row in range(len(timeline.rows)):
        first, last = timeline.place(row)
        for i in range(int(first * bins), min(bins, max(int(first * bins) + 1, round(last * bins)))):
            for level, values in levels.items():
                sizes[level][i] = max(sizes[level][i], values[row])
    floor, bottom = [0] * bins, chart.height + LEVELS - 8
    most = max(map(sum, zip(*sizes.values(), strict=True))) or 1
    for number, values in enumerate(sizes.values()):
        ceiling = [low + value for low, value in zip(floor, values, strict=True)]
        shape = area(floor, ceiling, LEFT, bottom, chart.inner / bins, (LEVELS - 26) / most)
        yield f'<path d="{shape}" fill="{colour(f"level{number % 3}")}"/>'
        floor = ceiling
    words = ", ".join(f"{level} up to {bytes_text(max(values))}" for level, values in levels.items())
    yield f'<text x="{LEFT}" y="{chart.height + 12}" fill="currentColor">states in other levels: {words}</text>'
    yield from frame(LEFT, chart.height + 18, chart.inner, LEVELS - 26)


def _place(summary: Summary) -> float:
    """The position of the peak on the axis, from 0 to 1: the end of its op if that is a record, otherwise its start."""
    timeline, peak = summary.timeline, summary.timeline.peak
    assert peak is not None
    return timeline.place(peak.row)[isinstance(timeline.rows.op[peak.row], Record)]
