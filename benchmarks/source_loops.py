"""Plain loops by source beside the same loop as `remat.scan`: what a step costs more, its memory, and decorating.

Run it: python benchmarks/source_loops.py. Rounds alternate; times are medians of the CPU's, on NumPy and PyTorch.
"""

import statistics
import time
import tracemalloc

import autograd.numpy as np
import numpy
import torch
from autograd import grad

import remat

STEPS, SLOTS, ROUNDS = 1000, 31, 9


def plain(x, W, b):
    for _ in range(STEPS):
        x = np.tanh(x @ W + b)
    return np.sum(x**2)


def by_hand(x, W, b):
    x, _ = remat.scan(lambda x, i: (np.tanh(x @ W + b), None), x, numpy.arange(STEPS), slots=SLOTS)
    return np.sum(x**2)


def torch_plain(x, W, b):
    for _ in range(STEPS):
        x = torch.tanh(x @ W + b)
    return torch.sum(x**2)


def torch_by_hand(x, W, b):
    x, _ = remat.scan(lambda x, i: (torch.tanh(x @ W + b), None), x, torch.arange(STEPS), slots=SLOTS)
    return torch.sum(x**2)


def three_levels(x, W, b):
    for _i in range(6):
        s = x
        for _j in range(5):
            s = np.tanh(s @ W)
            for _k in range(3):
                x = 0.5 * x + 0.1 * s
        x = x + b * 0.01
    return np.sum(x)


def seconds(function, *arguments):
    began = time.process_time()
    function(*arguments)
    return time.process_time() - began


def of_torch(function):
    """The gradient of a function of tensors, by its first argument."""

    def gradient(*arguments):
        x, *rest = (torch.from_numpy(each) for each in arguments)
        x.requires_grad_()
        [found] = torch.autograd.grad(function(x, *rest), x)
        return found.numpy()

    return gradient


def peak(function, *arguments):
    function(*arguments)  # what is made once, such as plans, does not count
    tracemalloc.start()
    function(*arguments)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def main():
    rng = numpy.random.default_rng(0)
    decorate = remat.checkpointed(slots=SLOTS)
    for name, fn in (("one loop", plain), ("three nested ones", three_levels)):
        print(f"decorating {name}: {1e3 * statistics.median(seconds(decorate, fn) for _ in range(15)):.1f} ms")
    for size in (64, 512):
        arguments = rng.normal(size=size), rng.normal(size=(size, size)) / size**0.5, rng.normal(size=size)
        peaks = [peak(grad(fn), *arguments) for fn in (plain, decorate(plain))]
        print(f"NumPy, size {size}: {peaks[0] / 2**20:.2f} MiB plain, {peaks[1] / 2**20:.2f} by source,", end=" ")
        print(f"{peaks[0] / peaks[1]:.0f} times less")
    with remat.profile() as run:
        grad(decorate(plain))(*arguments)
    print(f"step evaluations: {run.calls[0].trace.forward_steps} run, {run.calls[0].plan.forward_steps} planned")
    print("| | size | plain | scan by hand | by source | over scan |")
    print("|---|---|---|---|---|---|")
    for title, of, ways in (
        ("NumPy", grad, {"plain": plain, "hand": by_hand, "source": decorate(plain)}),
        ("PyTorch", of_torch, {"plain": torch_plain, "hand": torch_by_hand, "source": decorate(torch_plain)}),
    ):
        for size in (16, 64, 256):
            arguments = rng.normal(size=size), rng.normal(size=(size, size)) / size**0.5, rng.normal(size=size)
            gradients = {name: of(fn) for name, fn in ways.items()}
            results = {name: gradient(*arguments) for name, gradient in gradients.items()}
            assert all(numpy.array_equal(found, results["plain"]) for found in results.values())
            found = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, gradient in gradients.items():
                    found[name].append(seconds(gradient, *arguments))
            times = {name: statistics.median(each) for name, each in found.items()}
            over = 100 * statistics.median(s / h - 1 for s, h in zip(found["source"], found["hand"], strict=True))
            print(
                f"| {title} | {size} | " + " | ".join(f"{1e3 * times[n]:.0f} ms" for n in ways) + f" | {over:+.1f} % |"
            )


if __name__ == "__main__":
    main()
