"""Draw the pictures of README.md and of the site, by the report's own charts: python docs/draw_pictures.py.

`liveness-wide.svg` is one gradient of an LSTM, plain and inside a budget, measured while it ran, on one scale of bytes;
`liveness.svg` has the same two charts one below the other, for a phone. `save-points.svg` is the LSTM of 2,048 steps
without and with seven save points, as planned.
"""

from dataclasses import replace
from pathlib import Path

import torch

import remat
from remat.planners import SavePoints
from remat.reporting.report_subject import subjects_of
from remat.reporting.summary import summarise
from remat.reporting.svg import standalone
from remat.reporting.svg_liveness import liveness_svg
from remat.units import to_bytes

FOLDER = Path(__file__).parent / "pictures"
STEPS, INPUTS, HIDDEN, BATCH, MEMORY, ROUNDS = 1000, 16, 64, 16, "4 MiB", 6


def gradient(memory: str) -> remat.Profile:
    """A profile of one gradient of an LSTM."""
    torch.manual_seed(0)
    cell, zeros, xs = torch.nn.LSTMCell(INPUTS, HIDDEN), torch.zeros(BATCH, HIDDEN), torch.randn(STEPS, BATCH, INPUTS)

    def step(carry: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor) -> tuple[tuple, torch.Tensor]:
        h, c = cell(x, carry)
        return (h, c), h.square().mean()

    with remat.profile() as run:
        remat.scan(step, (zeros, zeros), xs, memory=memory)[1].mean().backward()
    return run


def seconds(run: remat.Profile) -> float:
    """What its loop took."""
    trace = run.calls[0].trace
    assert trace is not None
    return trace.seconds


def draw(runs: dict[str, remat.Profile], path: Path, columns: int, width: int, height: int = 260) -> None:
    """One picture of several runs, with the same bytes to an inch and the same limit."""
    limit = to_bytes(MEMORY, "limit")
    summaries = [summarise(replace(subjects_of(run)[0], limit=limit)) for run in runs.values()]
    top = max(summary.subject.trace.peak for summary in summaries)
    charts = ""
    for i, (label, summary) in enumerate(zip(runs, summaries, strict=True)):
        chart = liveness_svg(summary, width, height, top=top, bins=220)
        x, y = i % columns * width, i // columns * (height + 26)
        charts += f'<text x="{x + 74}" y="{y + 17}" font-weight="bold" fill="currentColor">{label}</text>'
        charts += chart.replace("<svg", f'<svg x="{x}" y="{y + 22}"', 1)
    wide, high = columns * width, len(runs) // columns * (height + 26)
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    path.write_text(standalone(f'<svg {size} role="img" {font}>{charts}</svg>'), encoding="utf-8")


def main(folder: Path = FOLDER) -> None:
    """Draw all of them."""
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    rounds = [(gradient("1 GiB"), gradient(MEMORY)) for _ in range(ROUNDS)]  # in turns, the first to warm up
    plain, ours = (sorted(runs[1:], key=seconds)[ROUNDS // 2 - 1] for runs in zip(*rounds, strict=True))
    runs = {"plain: all steps are held": plain, f'remat: memory="{MEMORY}"': ours}
    draw(runs, folder / "liveness.svg", columns=1, width=540)
    draw(runs, folder / "liveness-wide.svg", columns=2, width=540)
    loop = remat.Loop(2048, state="16 KiB", tape="56 KiB")
    points = remat.plan(loop, "128 MiB", planner=SavePoints(remat.save_points(2048, 7)))
    labels = ("no checkpoints", "seven checkpoints")
    remat.report(remat.plan(loop, "128 MiB"), points, folder / "save-points.svg", labels=labels)


if __name__ == "__main__":
    main()
