"""The profiler: what every call of remat in a program did, planned and measured.

`remat.profile()` records loops and segments, wherever they are called; the table has a line for each place, the page
shows what was live when. Run it: python examples/torch_profiler.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import remat
from remat.legacy import CheckpointProfiler

STEPS, HIDDEN, BATCH, MEMORY = 200, 32, 16, "256 KiB"


class Model(nn.Module):
    """An encoder that is recomputed as one block, then a recurrent cell over many steps, in a budget."""

    def __init__(self):
        super().__init__()
        self.encoder = remat.drop(nn.Sequential(nn.Linear(4, 128), nn.GELU(), nn.Linear(128, HIDDEN)))
        self.cell = nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self, xs):
        """One number for each step."""

        def step(h, x):
            h = self.cell(x, h)
            return h, h.square().mean()

        return remat.scan(step, torch.zeros(BATCH, HIDDEN), self.encoder(xs), memory=MEMORY)[1]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, xs = Model(), torch.randn(STEPS, BATCH, 4)
    model(xs).mean().backward()  # warm: the step is measured and planned in the first call
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    CheckpointProfiler.reset_statistics()
    CheckpointProfiler.start_tracking()
    with remat.profile() as run:
        model(xs).mean().backward()
    CheckpointProfiler.stop_tracking()
    print(run)
    print(
        f"CheckpointProfiler: {CheckpointProfiler.checkpoint_count()} counted, "
        f"{CheckpointProfiler.memory_saved() / 1024:.0f} KiB not held"
    )
    call = next(call for call in run.calls if call.trace is not None)
    print(f"the loop held {call.trace.peak / 1024:.0f} KiB of {MEMORY} at its peak (measured)")
    assert call.trace.peak <= 256 * 1024
    with tempfile.TemporaryDirectory() as folder:
        page = Path(run.report(Path(folder) / "run.html"))
        print(f"run.report({page.name!r}) writes a page of {page.stat().st_size // 1024} kB that opens offline")
    worst = max(float((a.grad - b).abs().max()) for a, b in zip(model.parameters(), expected, strict=True))
    print(f"gradients with and without a profile agree to {worst:.1e}")
    assert worst == 0.0


if __name__ == "__main__":
    main()
