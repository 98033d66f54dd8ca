"""An LSTM over many steps in PyTorch: plain, √n segments by torch.utils.checkpoint, nested ones, and remat at budgets.

    python benchmarks/torch_loops.py                              on this machine's CPU, one thread
    python benchmarks/torch_loops.py --device cuda --hidden 512 --batch 64
    python benchmarks/torch_loops.py --device cuda --hidden 2048 --batch 256 --steps 4000
    python benchmarks/torch_loops.py --device cuda --hidden 2048 --batch 256 --steps 20000 --only remat

All in one process, one after the other and several times round; printed are medians of ratios to the plain loop of the
same round. Inputs want a gradient, as those from a layer below do. Peaks are of the whole gradient, beyond what was
allocated before (inputs and parameters): by the CUDA allocator, or by counting every storage on the CPU. Host bytes are
what the C library has handed out between the forward pass and the backward pass.
"""

import argparse
import ctypes
import gc
import statistics
import time

import torch
from torch.utils.checkpoint import checkpoint

import remat
from remat.frameworks.torch.meter import CudaMeter, StorageMeter

SEGMENT = 31


class Counter:
    """A number in a slot: attributes of the module itself are put back after a recomputation."""

    __slots__ = ("calls",)


class Cell(torch.nn.Module):
    """An LSTM cell that counts its calls."""

    def __init__(self, hidden):
        super().__init__()
        self.gates = torch.nn.Linear(2 * hidden, 4 * hidden)
        self.counter = Counter()

    def forward(self, carry, x):
        self.counter.calls += 1
        h, c = carry
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return (torch.sigmoid(o) * torch.tanh(c), c), None


def plain(cell, carry, xs):
    for x in xs.unbind(0):  # the fair plain loop: xs[i] would add to a gradient of all steps at every step
        carry, _ = cell(carry, x)
    return carry


def segments(cell, carry, xs):
    for part in xs.split(SEGMENT):
        carry = checkpoint(plain, cell, carry, part, use_reentrant=False)
    return carry


def nested(cell, carry, xs):
    if len(xs) <= 8:
        return plain(cell, carry, xs)
    half = len(xs) // 2
    for part in (xs[:half], xs[half:]):
        carry = checkpoint(nested, cell, carry, part, use_reentrant=False)
    return carry


def by_remat(**budget):
    return lambda cell, carry, xs: remat.scan(cell, carry, xs, **budget)[0]


class Info(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ord", "smb", "hbl", "hblkhd", "usmb", "fsmb", "uordblks", "fordblks", "keep"]
    ]


def host_bytes():
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = Info
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd


class Bench:
    def __init__(self, device, steps, hidden, batch):
        torch.manual_seed(0)
        self.device, self.steps = torch.device(device), steps
        self.cell = Cell(hidden).to(self.device)
        self.xs = torch.randn(steps, batch, hidden, device=self.device, requires_grad=True)
        self.zeros = torch.zeros(batch, hidden, device=self.device)
        self.cuda = self.device.type == "cuda"
        held = [self.xs, *self.cell.parameters()]
        self.gradients = sum(tensor.numel() * tensor.element_size() for tensor in held)  # live at the end in any case

    def forget(self):
        self.cell.zero_grad()
        self.xs.grad = None

    def run(self, loop):
        """Seconds of one gradient, and forward steps."""
        self.forget()
        self.cell.counter.calls = 0
        self.finish()
        began = time.perf_counter()
        loss = loop(self.cell, (self.zeros, self.zeros), self.xs)[0].pow(2).sum()
        loss.backward()
        self.finish()
        return time.perf_counter() - began, self.cell.counter.calls

    def memory(self, loop):
        """Bytes at the peak, and host bytes a step that the forward pass leaves."""
        self.forget()
        self.cell.counter.calls = 0
        gc.collect()
        meter = CudaMeter(self.device) if self.cuda else StorageMeter()
        with meter.counting():
            meter.reset_peak()
            before, device = host_bytes(), meter.now()
            loss = loop(self.cell, (self.zeros, self.zeros), self.xs)[0].pow(2).sum()
            host = host_bytes() - before - (0 if self.cuda else meter.now() - device)
            loss.backward()
            self.finish()
        return meter.peak() - device, host / self.steps

    def gradient(self):
        return [tensor.cpu() for tensor in (self.cell.gates.weight.grad, self.xs.grad[:: max(1, self.steps // 100)])]

    def finish(self):
        if self.cuda:
            torch.cuda.synchronize()


def table(bench, rows, rounds):
    """Measure all rows side by side, and print them."""
    peaks, counts, errors = {}, {}, {}
    exact = None
    for name, loop in rows.items():
        if rounds > 1:
            bench.run(loop)  # warm up: measuring, planning, kernels
        peaks[name] = bench.memory(loop)
        counts[name] = bench.cell.counter.calls
        gradient = bench.gradient()
        exact = gradient if exact is None else exact
        errors[name] = max(float((a - b).norm() / b.norm()) for a, b in zip(gradient, exact, strict=True))
    times = {name: [] for name in rows}
    for _ in range(rounds):
        for name, loop in rows.items():
            times[name].append(bench.run(loop)[0])
    first = next(iter(rows))
    heads = ("peak MiB", "of first", "time", "ms a step", "steps", "host B", "error")
    print(f"{'':34}" + "".join(f"{head:>10}" for head in heads))
    for name in rows:
        ratios = [a / b for a, b in zip(times[name], times[first], strict=True)]
        peak, host = peaks[name]
        step = 1e3 * statistics.median(times[name]) / bench.steps
        print(
            f"{name:34}{peak / 2**20:>10.1f}{peak / peaks[first][0]:>10.1%}{statistics.median(ratios):>10.3f}"
            f"{step:>10.4f}{counts[name]:>10}{host:>10.0f}{errors[name]:>10.0e}"
        )
    return peaks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="leave out nested checkpoints and some budgets")
    parser.add_argument("--only", choices=["remat", "segments"], help="where plain does not fit, or takes too long")
    parser.add_argument("--memory", default="8 GiB", help="the budget with --only remat")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(args.device, args.steps, args.hidden, args.batch)
    where = torch.cuda.get_device_name() if bench.cuda else "one thread of a CPU"
    print(f"LSTM, {args.steps} steps, hidden {args.hidden}, batch {args.batch}, float32")
    print(f"on {where}, torch {torch.__version__}")
    print(f"gradients of inputs and parameters: {bench.gradients / 2**20:.1f} MiB of every peak")
    if args.only == "remat":
        table(bench, {f"remat, {args.memory}": by_remat(memory=args.memory)}, args.rounds)
        return
    rows = {"plain": plain, f"segments of {SEGMENT}": segments}
    if args.only:
        del rows["plain"]
    elif not args.quick:
        rows["nested checkpoints"] = nested
    bench.run(segments)
    target = bench.memory(segments)[0]
    if not args.only:
        rows[f"remat, {SEGMENT} slots"] = by_remat(slots=SEGMENT)
    for share in (0.8,) if args.only else (1.0, 0.8) if args.quick else (1.0, 0.9, 0.8, 0.65):
        budget = int(target * share) - bench.gradients
        try:
            bench.run(by_remat(memory=max(1, budget)))
        except remat.InfeasibleError as error:
            print(f"{share:.0%} of the segments' peak: {error}")
        else:
            rows[f"remat, {share:.0%} of the segments' peak"] = by_remat(memory=budget)
    table(bench, rows, args.rounds)


if __name__ == "__main__":
    main()
