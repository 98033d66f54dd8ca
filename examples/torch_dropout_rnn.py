"""A recurrent network with dropout, differentiated with and without recomputation: the same gradients, bit for bit.

A step that is recomputed draws the same dropout mask again, for random numbers are replayed; afterwards the stream of
random numbers goes on as if nothing had been recomputed. Run it: python examples/torch_dropout_rnn.py
"""

import time

import torch

import remat

STEPS, HIDDEN, BATCH, SLOTS = 800, 32, 16, 20


class Cell(torch.nn.Module):
    """One step: (carry, input) -> (carry, output), with half of the state dropped at random."""

    def __init__(self):
        super().__init__()
        self.recur, self.take = torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Linear(4, HIDDEN)
        self.dropout = torch.nn.Dropout(0.5)
        self.runs = 0

    def forward(self, h, x):
        """The next state, and its mean."""
        self.runs += 1
        h = torch.tanh(self.recur(self.dropout(h)) + self.take(x))
        return h, h.mean()


def plain(cell, h, xs):
    ys = []
    for x in xs.unbind(0):
        h, y = cell(h, x)
        ys.append(y)
    return h, torch.stack(ys)


def gradient(loop, cell, xs, **budget):
    """All gradients, runs of the step, the next random number, seconds."""
    torch.manual_seed(1)
    cell.zero_grad()
    cell.runs, xs.grad = 0, None
    began = time.perf_counter()
    h, ys = loop(cell, torch.zeros(BATCH, HIDDEN), xs, **budget)
    (h.sum() + ys.sum()).backward()
    seconds = time.perf_counter() - began
    return [xs.grad, *(p.grad for p in cell.parameters())], cell.runs, torch.rand(()).item(), seconds


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cell, xs = Cell(), torch.randn(STEPS, BATCH, 4, requires_grad=True)
    expected, runs, then, seconds = gradient(plain, cell, xs)
    print(f"plain         {runs:5} runs of the step  {seconds:.2f} s  next random number {then:.6f}")
    found, runs, now, seconds = gradient(remat.scan, cell, xs, slots=SLOTS)
    print(f"{SLOTS} kept states {runs:5} runs of the step  {seconds:.2f} s  next random number {now:.6f}")
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert now == then
    print("gradients of inputs and parameters agree to the last bit")


if __name__ == "__main__":
    main()
