"""A long LSTM under autograd, plainly and inside remat's budgets: peak memory and time, side by side in one run.

    python benchmarks/numpy_lstm.py [--steps 512] [--hidden 40] [--batch 60] [--slots 64] [--repeat 3]

Memory is what Python and NumPy allocate (tracemalloc) while the gradient is computed, measured apart from the time.
Prints ratios to plain autograd, then what `remat.scan` adds to each step of a bare Python loop.
"""

import argparse
import gc
import statistics
import time
import tracemalloc

import autograd.numpy as np
import numpy
from autograd import value_and_grad

import remat


def make(steps, hidden, batch, inputs=30, seed=0):
    rng = numpy.random.default_rng(seed)
    params = {
        "wx": rng.normal(size=(inputs, 4 * hidden)) / inputs**0.5,
        "wh": rng.normal(size=(hidden, 4 * hidden)) / hidden**0.5,
        "b": numpy.zeros(4 * hidden),
        "out": rng.normal(size=(hidden, inputs)) / hidden**0.5,
    }
    xs = numpy.eye(inputs)[rng.integers(inputs, size=(steps, batch))]
    targets = numpy.roll(xs, -1, axis=0)
    state = numpy.zeros((batch, hidden)), numpy.zeros((batch, hidden))
    return params, state, xs, targets


def sigmoid(x):
    return 0.5 * (np.tanh(0.5 * x) + 1.0)


def cell(params, state, x):
    h, c = state
    gates = np.dot(x, params["wx"]) + np.dot(h, params["wh"]) + params["b"]
    i, f, o, g = (gates[:, k * h.shape[1] : (k + 1) * h.shape[1]] for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def step_loss(params, h, target):
    scores = np.dot(h, params["out"])
    top = np.max(scores, axis=1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(scores - top), axis=1)) + top[:, 0] - np.sum(scores * target, axis=1))


def plain_loss(params, state, xs, targets):
    total = 0.0
    for x, target in zip(xs, targets, strict=True):
        state = cell(params, state, x)
        total = total + step_loss(params, state[0], target)
    return total / len(xs)


def remat_loss(params, state, xs, targets, **budget):
    def step(carry, inputs):
        state, total = carry
        state = cell(params, state, inputs[0])
        return (state, total + step_loss(params, state[0], inputs[1])), None

    (_, total), _ = remat.scan(step, (state, 0.0), (xs, targets), **budget)
    return total / len(xs)


def peak(function, *args):
    gc.collect()
    tracemalloc.start()
    function(*args)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def compare(steps, hidden, batch, budgets, repeat):
    data = make(steps, hidden, batch)
    ways = {"plain autograd": value_and_grad(plain_loss)}
    for name, budget in budgets.items():
        ways[name] = value_and_grad(lambda *args, budget=budget: remat_loss(*args, **budget))
    times = {name: [] for name in ways}
    for _ in range(repeat):  # taken in turns, so that what else runs here slows all of them
        for name, way in ways.items():
            began = time.perf_counter()
            way(*data)
            times[name].append(time.perf_counter() - began)
    memory = {name: peak(way, *data) for name, way in ways.items()}
    value, gradient = ways["plain autograd"](*data)
    print(f"\nLSTM, {steps} steps, hidden {hidden}, batch {batch}")
    print(f"{'':<28}{'peak MiB':>9}{'less by':>9}{'seconds':>9}{'ratio':>7}  gradient")
    base = statistics.median(times["plain autograd"])
    for name, way in ways.items():
        took = statistics.median(times[name])
        found = way(*data)
        error = max(
            numpy.max(numpy.abs(found[1][k] - gradient[k])) / numpy.max(numpy.abs(gradient[k])) for k in gradient
        )
        same = "the same, bit for bit" if error == 0 and found[0] == value else f"off by {error:.1e}"
        less = memory["plain autograd"] / memory[name]
        print(f"{name:<28}{memory[name] / 2**20:>9.2f}{less:>8.1f}x{took:>9.3f}{took / base:>7.2f}  {same}")


def overhead(steps=20_000, repeat=7):
    xs = numpy.zeros((steps, 4))

    def step(h, x):
        return h + x, h

    def bare():
        h = numpy.zeros(4)
        for x in xs:
            h, _ = step(h, x)

    def scan():
        remat.scan(step, numpy.zeros(4), xs, slots=1)

    def timed(function):
        began = time.perf_counter()
        function()
        return (time.perf_counter() - began) / steps * 1e6

    bare_time, scan_time = (statistics.median(timed(f) for _ in range(repeat)) for f in (bare, scan))
    print(
        f"\nplain forward: a bare loop takes {bare_time:.2f} µs a step, remat.scan {scan_time - bare_time:.2f} µs more"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("steps", 512), ("hidden", 40), ("batch", 60), ("slots", 64), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    budgets = {f"remat, {a.slots} slots": {"slots": a.slots}, "remat, 8 MiB": {"memory": "8 MiB"}}
    compare(a.steps, a.hidden, a.batch, budgets, a.repeat)
    compare(
        1000, a.hidden, a.batch, {"remat, 31 slots": {"slots": 31}, "remat, 3 % of the memory": {"memory": "9 MiB"}}, 1
    )
    overhead()


if __name__ == "__main__":
    main()
