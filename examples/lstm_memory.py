"""An LSTM with and without a memory budget: the same function, the same gradient, measured memory.

Memory is counted above that of a sequence of 8 steps, which needs next to none. The loss of each step is computed in
the step, so that only numbers come out of the loop; what a loop puts out is held in any case.
Run it: python examples/lstm_memory.py
"""

import gc
import time
import tracemalloc

import autograd.numpy as np
import numpy
from autograd import value_and_grad

import remat

STEPS, HIDDEN, BATCH, INPUTS, MEMORY = 512, 40, 30, 20, "4 MiB"


def lstm(params, state, x):
    """One step: the next (cell, output), and the loss of guessing the input from the output."""
    cell, output = state
    gates = np.dot(x, params["wx"]) + np.dot(output, params["wh"]) + params["b"]
    take, forget, show, new = (gates[:, k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
    cell = sigmoid(forget) * cell + sigmoid(take) * np.tanh(new)
    output = sigmoid(show) * np.tanh(cell)
    return (cell, output), np.mean((np.dot(output, params["out"]) - x) ** 2)


def sigmoid(x):
    return 0.5 * (np.tanh(0.5 * x) + 1.0)


def plain(step, state, xs):
    losses = []
    for x in xs:
        state, loss = step(state, x)
        losses.append(loss)
    return state, np.stack(losses)


def in_budget(step, state, xs):
    return remat.scan(step, state, xs, memory=MEMORY)


def loss(params, loop, xs):
    zeros = numpy.zeros((BATCH, HIDDEN))
    _, losses = loop(lambda state, x: lstm(params, state, x), (zeros, zeros), xs)
    return np.mean(losses)


def measure(loop, params, xs):
    """Value, gradient, seconds, and the most MiB that were allocated."""
    gradient = value_and_grad(loss)
    gradient(params, loop, xs)
    began = time.perf_counter()
    value, slopes = gradient(params, loop, xs)
    seconds = time.perf_counter() - began
    gc.collect()
    tracemalloc.start()
    gradient(params, loop, xs)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return value, slopes, seconds, peak


def main():
    rng = numpy.random.default_rng(0)
    params = {
        "wx": rng.normal(size=(INPUTS, 4 * HIDDEN)) / INPUTS**0.5,
        "wh": rng.normal(size=(HIDDEN, 4 * HIDDEN)) / HIDDEN**0.5,
        "b": numpy.zeros(4 * HIDDEN),
        "out": rng.normal(size=(HIDDEN, INPUTS)) / HIDDEN**0.5,
    }
    xs = rng.normal(size=(STEPS, BATCH, INPUTS))
    short = measure(plain, params, xs[:8])[3]
    value, gradient, seconds, peak = measure(plain, params, xs)
    print(f"plain     loss {value:.12f}  {seconds:.2f} s  {peak - short:7.2f} MiB above a short sequence")
    value2, gradient2, seconds2, peak2 = measure(in_budget, params, xs)
    print(f"in {MEMORY}  loss {value2:.12f}  {seconds2:.2f} s  {peak2 - short:7.2f} MiB above a short sequence")
    worst = max(numpy.max(numpy.abs(gradient[k] - gradient2[k])) / numpy.max(numpy.abs(gradient[k])) for k in params)
    print(
        f"{peak / peak2:.1f} times less memory in all at {seconds2 / seconds:.2f} times the time; "
        f"gradients agree to {worst:.1e}"
    )
    assert abs(value - value2) < 1e-14
    assert worst < 1e-12


if __name__ == "__main__":
    main()
