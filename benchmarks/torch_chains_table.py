"""The table, the checks and the picture of torch_chains.py."""

from html import escape
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import median

from remat.units import bytes_text

__all__ = ["checks", "markdown", "picture"]

PEAK_ERROR, TIME_ERROR, SLOWER = 0.05, 0.15, 1.03  # what the checks allow
HEADS = ("way", "budget", "peak", "of plain", "predicted", "error", "time", "ms", "predicted", "error", "gradients")
HEADS += ("planned in",)
STYLE = (
    "text{fill:#1b1b1b}.paper{fill:#fff}.grid{stroke:#eee}"
    "@media(prefers-color-scheme:dark){text{fill:#e8e8e8}.paper{fill:#16181c}.grid{stroke:#30343a}}"
)
COLOURS = {"blocks": "#e69f00", "ops": "#009e73", "ours": "#0072b2", "predicted": "#56b4e9"}


def ratio(way, plain):
    """Time relative to plain: the median over rounds."""
    return median(a / b for a, b in zip(way.times, plain.times, strict=True))


def markdown(ways):
    """Rows of all ways, the first of which is plain."""
    plain = ways[0]
    lines = [f"| {' | '.join(HEADS)} |", "|---|" + "--:|" * 9 + "---|--:|"]
    for way in ways:
        cells = [way.name, "" if way.budget is None else bytes_text(way.budget)]
        if way.error:
            lines.append(f"| {' | '.join(cells)} | {way.error[:120]} |")
            continue
        seconds = median(way.times)
        cells += [bytes_text(way.peak), f"{way.peak / plain.peak:.3f}", *_predicted(way, "peak", way.peak, bytes_text)]
        cells += [f"×{ratio(way, plain):.3f}", f"{1e3 * seconds:.1f}"]
        cells += _predicted(way, "seconds", seconds, lambda value: f"{1e3 * value:.1f}")
        buffers = "" if way.buffers else ", statistics differ"
        cells += [way.gradients + buffers, f"{way.planning:.1f} s" if way.is_ours else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _predicted(way, what, measured, text):
    if way.plan is None:
        return ["", ""]
    value = getattr(way.plan, what)
    return [text(value), f"{value / measured - 1:+.1%}"]


def checks(ways):
    """What is to hold, each with how far it does."""
    plain, ours = ways[0], [way for way in ways if way.is_ours and not way.error]
    yield from (f"{'refused' if way.least else 'FAIL'} {way.name}: {way.error}" for way in ways if way.error)
    over = [f"{way.name}: {bytes_text(way.peak - way.budget)} over" for way in ours if way.peak > way.budget]
    yield _verdict("peaks are inside the budget", len(ours), over)
    falling = sorted(ours, key=lambda way: -way.budget)
    rises = [f"{b.name} has more than {a.name}" for a, b in pairwise(falling) if b.peak > a.peak]
    yield _verdict("less budget, less peak", len(ours), rises)
    for what, allowed in (("peak", PEAK_ERROR), ("seconds", TIME_ERROR)):
        errors = {way.name: _error(way, what) for way in ours}
        far = [f"{name}: {error:+.1%}" for name, error in errors.items() if abs(error) > allowed]
        worst = max(errors.values(), key=abs, default=0.0)
        yield _verdict(f"predicted {what} within {allowed:.0%} (worst {worst:+.1%})", len(ours), far)
    wrong = [way.name for way in ways if not way.error and way.gradients.startswith("WRONG")]
    yield _verdict("gradients are plain's", len(ways), wrong)
    yield _verdict("statistics are plain's", len(ours), [way.name for way in ours if not way.buffers])
    peers = {way.name: way for way in ways if not way.is_ours}
    slow, compared = [], [way for way in ours if way.beside]
    for way in compared:
        found = ratio(way, peers[way.beside])
        if found > SLOWER:
            slow.append(f"{way.name}: ×{found:.3f}")
    yield _verdict(f"at a peer's peak at most {SLOWER - 1:.0%} slower", len(compared), slow)
    least, lowest = min(way.peak for way in peers.values() if not way.error), min((w.peak for w in ours), default=0)
    yield f"lowest peak: {lowest / plain.peak:.3f} of plain by remat, {least / plain.peak:.3f} by PyTorch"


def _error(way, what):
    return getattr(way.plan, what) / (way.peak if what == "peak" else median(way.times)) - 1


def _verdict(what, count, bad):
    return f"FAIL {what}: {len(bad)} of {count}; {'; '.join(bad[:12])}" if bad else f"ok   {what} ({count})"


def picture(ways, title, file, width=760, height=460):
    """Time against peak, both relative to plain: points of PyTorch, the line of remat, and what was predicted."""
    plain, shown = ways[0], [way for way in ways if not way.error]
    left, right, upper, lower = 60, 20, 50, 50
    inner, tall = width - left - right, height - upper - lower
    low = log(0.9 * min(way.peak / plain.peak for way in shown))
    # The smallest budgets may take several times as long: they are drawn at the upper edge.
    top = min(1.6, max(1.1, *(ratio(way, plain) for way in shown)) * 1.02)
    bottom = min(1.0, *(ratio(way, plain) for way in shown)) - 0.02

    def place(share, time):
        x = left + inner * (log(share) - low) / (log(1.05) - low)
        return x, upper + tall * (1 - (min(time, top) - bottom) / (top - bottom))

    elements = [f'<text x="{left}" y="20" font-weight="bold">{escape(title)}</text>', *_legend(left, 38)]
    elements.append(f'<path d="M{left} {upper}v{tall}h{inner}" fill="none" stroke="#888"/>')
    for share in (1, 0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02):
        if log(share) >= low:
            x = place(share, 1)[0]
            elements.append(f'<text x="{x:.1f}" y="{upper + tall + 18}" text-anchor="middle">{share:g}</text>')
            elements.append(f'<path d="M{x:.1f} {upper}v{tall}" class="grid"/>')
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1, 5, 1e9) if (top - 1) / step <= 10)
    for i in range(int((top - 1) / step) + 1):
        y = place(1, 1 + i * step)[1]
        elements.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">×{1 + i * step:g}</text>')
        elements.append(f'<path d="M{left} {y:.1f}h{inner}" class="grid"/>')
    elements.append(f'<text x="{left + inner / 2}" y="{height - 12}" text-anchor="middle">peak, of plain</text>')
    middle = upper + tall / 2
    elements.append(
        f'<text transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">time, of plain</text>'
    )
    ours = sorted((way for way in shown if way.is_ours), key=lambda way: way.peak)
    base = median(plain.times)
    elements.append(_line([place(w.plan.peak / plain.peak, w.plan.seconds / base) for w in ours], "predicted", "4 3"))
    elements.append(_line([place(w.peak / plain.peak, ratio(w, plain)) for w in ours], "ours"))
    for way in shown:
        x, y = place(way.peak / plain.peak, ratio(way, plain))
        kind = "ours" if way.is_ours else "blocks" if way.whole_blocks else "ops"
        words = f"{way.name}: {bytes_text(way.peak)}, ×{ratio(way, plain):.3f}"
        elements.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 if way.is_ours else 5}" fill="{COLOURS[kind]}">'
            f"<title>{escape(words)}</title></circle>"
        )
    _write(Path(file), width, height, elements)


def _line(places, kind, dashes=""):
    path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
    return f'<path d="{path}" fill="none" stroke="{COLOURS[kind]}" stroke-width="1.5" stroke-dasharray="{dashes}"/>'


def _legend(x, y):
    names = {
        "blocks": "checkpoint, whole blocks",
        "ops": "checkpoint, selective",
        "ours": "remat",
        "predicted": "predicted",
    }
    for kind, name in names.items():
        yield f'<circle cx="{x + 5}" cy="{y - 4}" r="5" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 14}" y="{y}">{name}</text>'
        x += 40 + 7 * len(name)


def _write(file, width, height, elements):
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" class="paper"/>'
        f"{''.join(elements)}</svg>\n"
    )
    if file.suffix == ".png":
        import resvg_py

        file.write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2)))
    else:
        file.write_text(svg)
