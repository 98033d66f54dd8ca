"""Parts of pictures, as text of SVG elements: colours, frames, axes, labels, areas."""

from html import escape

__all__ = ["COLOURS", "KINDS", "area", "colour", "frame", "label", "on_paper", "side_title", "svg", "ticks", "title"]

# Okabe & Ito's palette, which colour-blind readers can distinguish.
COLOURS = {
    "state": "#0072b2",
    "tape": "#e69f00",
    "cotangent": "#009e73",
    "forward": "#56b4e9",
    "recompute": "#d55e00",
    "backward": "#cc79a7",
    "move": "#999999",
    "budget": "#c1121f",
    "level0": "#4c78a8",
    "level1": "#72b7b2",
    "level2": "#9d755d",
}
KINDS = ("state", "tape", "cotangent")
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def svg(width: int, height: int, elements: list[str]) -> str:
    """A picture of that size with these elements."""
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" {_FONT} style="max-width:100%;height:auto">{"".join(elements)}</svg>'
    )


def title(text: str) -> str:
    """The title of the picture, for screen readers."""
    return f"<title>{escape(text)}</title>"


def label(x: float, y: float, text: str) -> str:
    """Text centred at `x`."""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="currentColor">{text}</text>'


def colour(name: str) -> str:
    """A colour of the page, or its default."""
    return f"var(--{name},{COLOURS[name]})"


def frame(x: int, y: int, width: int, height: int) -> list[str]:
    """The axes, at the left and at the bottom."""
    return [f'<path d="M{x} {y}v{height}h{width}" fill="none" stroke="currentColor" stroke-opacity=".5"/>']


def area(floor: list[int], ceiling: list[int], x: float, y: float, step: float, scale: float) -> str:
    """The path between two step functions."""
    upper = "".join(f"V{y - value * scale:.1f}h{step:.3f}" for value in ceiling)
    lower = "".join(f"V{y - value * scale:.1f}h{-step:.3f}" for value in reversed(floor))
    return f"M{x:.1f} {y - floor[0] * scale:.1f}{upper}{lower}Z"


def ticks(most: int) -> list[int]:
    """Two to four round numbers of bytes up to `most`."""
    unit = 1
    while most / unit > 4:
        unit *= 2 if most / unit <= 8 or unit.bit_length() > 60 else 4
    return [unit * i for i in range(1, int(most / unit) + 1)]


def side_title(y: float, text: str) -> str:
    """The title of the left axis, running from bottom to top."""
    return (
        f'<text x="12" y="{y:.1f}" transform="rotate(-90 12 {y:.1f})" text-anchor="middle" fill="currentColor" '
        f'fill-opacity=".7">{escape(text)}</text>'
    )


def on_paper(x: float, y: float, text: str, anchor: str, fill: str, weight: str = "normal") -> str:
    """Text with its own background, so that no line or area runs through it."""
    width = 6.0 * len(text) * (1.08 if weight == "bold" else 1.0) + 6
    left = x - width + 3 if anchor == "end" else x - width / 2 if anchor == "middle" else x - 3
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return (
        f'<rect x="{left:.1f}" y="{y - 11.5:.1f}" width="{width:.1f}" height="15" fill="var(--paper,#ffffff)"/>'
        f'<text {where} font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
    )
