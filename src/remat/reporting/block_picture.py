"""An SVG picture of what blocks hold over time: stacked areas, one per block, in the order of the blocks."""

from html import escape
from itertools import pairwise

from remat.reporting.block_memory import BlockMemory
from remat.reporting.svg_parts import frame, label, on_paper, side_title, svg, ticks, title
from remat.units import bytes_text, seconds_text

__all__ = ["NARROW", "block_picture"]

WIDTH, NARROW, HEIGHT, LEFT, RIGHT, UPPER, LOWER = 720, 360, 300, 88, 12, 40, 62
# What is held, by reason, from bottom to top: inputs, then what is kept, then what is recomputed.
COLOURS = {"inputs": "#0072b2", "kept": "#e69f00", "recomputed": "#d55e00"}
MOST_EDGES = 1200  # the most times at which the picture changes; if there are more, it is coarser


def block_picture(memory: BlockMemory, width: int = WIDTH) -> str:
    """Live bytes over time, split by block; pointing at a block shows its name."""
    span, peak = memory.span or 1.0, memory.peak or 1
    inner, floor = width - LEFT - RIGHT, HEIGHT - LOWER
    scale = (floor - UPPER) / (1.02 * peak)
    elements = [title(f"Live bytes by block: {memory.headline}"), *frame(LEFT, UPPER, inner, floor - UPPER)]
    elements += _areas(memory, inner / span, scale, floor)
    for value in (0, *ticks(peak)):
        y, text = floor - value * scale, bytes_text(value) if value else "0"
        elements.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">{text}</text>')
    marks = 4 if width >= WIDTH else 2
    for i in range(marks + 1):
        anchor = "start" if i == 0 else "end" if i == marks else "middle"
        text, x = seconds_text(i / marks * span), LEFT + i / marks * inner
        elements.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="{anchor}" fill="currentColor">{text}</text>')
    elements.append(label(LEFT + inner / 2, floor + 34, "time"))
    elements.append(side_title((UPPER + floor) / 2, "live memory"))
    x, top = LEFT + memory.peak_time / span * inner, memory.at(memory.peak_time)[0]
    words = [f"blocks hold {bytes_text(peak)}", f"{bytes_text(top.size)} of it {top.block} ({top.what})"]
    if 7 * len(", ".join(words)) < width:
        words = [", ".join(words)]
    long = 7 * max(map(len, words))
    anchor = "start" if x + long < width - RIGHT else "end" if x - long > 0 else "middle"
    elements.append(f'<path d="M{x:.1f} {UPPER}V{floor}" stroke="currentColor" stroke-dasharray="2 3"/>')
    at = width / 2 if anchor == "middle" else x
    elements += [on_paper(at, 16 + 15 * i, line, anchor, "currentColor", "bold") for i, line in enumerate(words)]
    shown = [(what, colour) for what, colour in COLOURS.items() if any(each.what == what for each in memory.held)]
    for i, (what, colour) in enumerate(shown):
        at = LEFT + (width - LEFT) // 3 * i if width < WIDTH else LEFT + 120 * i
        elements.append(f'<rect x="{at}" y="{HEIGHT - 17}" width="10" height="10" fill="{colour}"/>')
        elements.append(f'<text x="{at + 14}" y="{HEIGHT - 8}" fill="currentColor">{what}</text>')
    return svg(width, HEIGHT, elements)


def _areas(memory: BlockMemory, per_second: float, scale: float, floor: float) -> list[str]:
    """Rectangles, one for each block and reason between two changes."""
    order = {block.name: number for number, block in enumerate(memory.blocks)}
    times = sorted({time for each in memory.held for time in (each.start, each.stop)})
    times = times[:: -(-len(times) // MOST_EDGES)]
    elements = []
    for start, stop in pairwise(times):
        live = [each for each in memory.held if each.start <= start and each.stop >= stop]
        live.sort(key=lambda each: ([*COLOURS].index(each.what), order[each.block]))
        y = floor
        for each in live:
            height, x, width = each.size * scale, LEFT + start * per_second, (stop - start) * per_second
            y -= height
            shade = "" if order[each.block] % 2 else ' fill-opacity=".82"'  # makes neighbours distinguishable
            words = escape(f"{each.block}, {each.what}: {bytes_text(each.size)}")
            elements.append(
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{width + 0.05:.2f}" height="{height:.2f}" '
                f'fill="{COLOURS[each.what]}"{shade}><title>{words}</title></rect>'
            )
    return elements
