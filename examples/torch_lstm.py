"""An LSTM trained through 10,000 steps of PyTorch inside a memory budget, with what plain PyTorch would have needed.

The memory is that of the values themselves, as a profile measures it while the loop runs; what the plain loop would
hold is computed from the tape of a step. Run it: python examples/torch_lstm.py
"""

import time

import torch

import remat

STEPS, SHORT, HIDDEN, BATCH, MEMORY = 10_000, 300, 16, 8, "2 MiB"


class Cell(torch.nn.Module):
    """One step: (carry, input) -> (carry, output)."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(1, HIDDEN)

    def forward(self, carry, x):
        """The next (output, cell), and one number of the output as the answer."""
        h, c = self.cell(x, carry)
        return (h, c), h[:, 0]


def plain(cell, carry, xs, **_):
    ys = []
    for x in xs.unbind(0):
        carry, y = cell(carry, x)
        ys.append(y)
    return carry, torch.stack(ys)


def loss(loop, cell, xs, targets, **budget):
    zeros = torch.zeros(BATCH, HIDDEN)
    _, ys = loop(cell, (zeros, zeros), xs, **budget)
    return torch.mean((ys - targets) ** 2)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cell = Cell()
    xs = torch.rand(STEPS, BATCH, 1)
    targets = torch.cumsum(xs[..., 0], 0) / torch.arange(1, STEPS + 1)[:, None]  # the mean of what came so far

    short = xs[:SHORT], targets[:SHORT]
    before = loss(plain, cell, *short)
    expected = torch.autograd.grad(before, cell.parameters())
    gradients = torch.autograd.grad(loss(remat.scan, cell, *short, slots=20), cell.parameters())
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(gradients, expected, strict=True))
    print(f"gradients of {SHORT} steps, plain and with 20 kept states, agree to {worst:.1e}")
    assert worst < 1e-5

    began = time.perf_counter()
    with remat.profile() as run:
        loss(remat.scan, cell, xs, targets, memory=MEMORY).backward()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter -= parameter.grad
        after = loss(plain, cell, *short)
    print(f"a gradient through {STEPS:,} steps in {seconds:.1f} s; one step of descent by it takes the loss")
    print(f"of the first {SHORT} from {before.item():.4f} to {after.item():.4f}")

    call = run.calls[0]
    step, trace = call.plan.problem, call.trace
    runs = trace.forward_steps / STEPS
    print(f"plain would hold {STEPS * step.tape / 2**20:.1f} MiB: {STEPS:,} tapes of {step.tape:,} bytes (computed)")
    print(f"inside {MEMORY}: {trace.peak / 2**20:.2f} MiB at the most (measured), every step run {runs:.2f} times")
    assert trace.peak <= 2 * 2**20
    assert trace.forward_steps == call.plan.forward_steps
    assert after < before


if __name__ == "__main__":
    main()
