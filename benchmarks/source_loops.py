"""Plain loops by source beside the same loop as `remat.scan`: what a step costs more, and what decorating costs.

Run it: python benchmarks/source_loops.py. Rounds alternate; each figure is the best of its rounds.
"""

import time

import autograd.numpy as np
import numpy
from autograd import grad

import remat

STEPS, SLOTS, ROUNDS = 1000, 31, 7


def plain(x, W, b):
    for _ in range(STEPS):
        x = np.tanh(x @ W + b)
    return np.sum(x**2)


def by_hand(x, W, b):
    x, _ = remat.scan(lambda x, i: (np.tanh(x @ W + b), None), x, numpy.arange(STEPS), slots=SLOTS)
    return np.sum(x**2)


def three_levels(x, W, b):
    for _i in range(6):
        s = x
        for _j in range(5):
            s = np.tanh(s @ W)
            for _k in range(3):
                x = 0.5 * x + 0.1 * s
        x = x + b * 0.01
    return np.sum(x)


def best(function, *arguments):
    began = time.process_time()
    function(*arguments)
    return time.process_time() - began


def main():
    rng = numpy.random.default_rng(0)
    decorate = remat.checkpointed(slots=SLOTS)
    times = {name: min(best(decorate, fn) for _ in range(9)) for name, fn in (("one", plain), ("three", three_levels))}
    print(f"decorating: one loop {1e3 * times['one']:.1f} ms, three nested ones {1e3 * times['three']:.1f} ms")
    print("| size | plain | scan by hand | by source | over scan |")
    print("|---|---|---|---|---|")
    for size in (16, 64, 256):
        arguments = rng.normal(size=size), rng.normal(size=(size, size)) / size**0.5, rng.normal(size=size)
        ways = {"plain": grad(plain), "hand": grad(by_hand), "source": grad(decorate(plain))}
        results = {name: gradient(*arguments) for name, gradient in ways.items()}
        assert all(numpy.array_equal(found, results["plain"]) for found in results.values())
        found = {name: min(best(gradient, *arguments) for _ in range(ROUNDS)) for name, gradient in ways.items()}
        for _ in range(ROUNDS):
            for name, gradient in ways.items():
                found[name] = min(found[name], best(gradient, *arguments))
        over = 100 * (found["source"] / found["hand"] - 1)
        cells = " | ".join(f"{1e3 * found[name]:.0f} ms" for name in ways)
        print(f"| {size} | {cells} | {over:+.1f} % |")


if __name__ == "__main__":
    main()
