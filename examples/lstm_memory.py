"""An LSTM with and without checkpoints: the same function, the same gradient, measured memory.

The cell is hidden state and the output visible state, for only the output is used to guess. Memory is counted above
that of a sequence of 8 steps, which needs next to none. Run it: python examples/lstm_memory.py
"""

import gc
import time
import tracemalloc

import autograd.numpy as np
import numpy
from autograd import value_and_grad

from remat import binomial_checkpoint

STEPS, HIDDEN, BATCH, INPUTS, CHECKPOINTS = 512, 40, 30, 20, 64


def lstm(params, state, x):
    """(parameters, (cell, output), input) -> (cell, output)."""
    cell, output = state
    gates = np.dot(x, params["wx"]) + np.dot(output, params["wh"]) + params["b"]
    take, forget, show, new = (gates[:, k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
    cell = sigmoid(forget) * cell + sigmoid(take) * np.tanh(new)
    return cell, sigmoid(show) * np.tanh(cell)


def sigmoid(x):
    return 0.5 * (np.tanh(0.5 * x) + 1.0)


def plain(params, state, inputs):
    outputs = [state[1]]
    for x in inputs:
        state = lstm(params, state, x)
        outputs.append(state[1])
    return np.stack(outputs)


def loss(params, loop, inputs):
    zeros = numpy.zeros((BATCH, HIDDEN))
    outputs = loop(params, (zeros, zeros), inputs)
    return np.mean((np.dot(outputs[1:], params["out"]) - inputs) ** 2)


def measure(loop, params, inputs):
    """Value, gradient, seconds, and the most MiB that were allocated."""
    gradient = value_and_grad(loss)
    began = time.perf_counter()
    value, found = gradient(params, loop, inputs)
    seconds = time.perf_counter() - began
    gc.collect()
    tracemalloc.start()
    gradient(params, loop, inputs)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return value, found, seconds, peak


def main():
    rng = numpy.random.default_rng(0)
    params = {
        "wx": rng.normal(size=(INPUTS, 4 * HIDDEN)) / INPUTS**0.5,
        "wh": rng.normal(size=(HIDDEN, 4 * HIDDEN)) / HIDDEN**0.5,
        "b": numpy.zeros(4 * HIDDEN),
        "out": rng.normal(size=(HIDDEN, INPUTS)) / HIDDEN**0.5,
    }
    inputs = rng.normal(size=(STEPS, BATCH, INPUTS))
    short = measure(plain, params, inputs[:8])[3]
    value, gradient, seconds, peak = measure(plain, params, inputs)
    print(f"plain         loss {value:.12f}  {seconds:.2f} s  {peak - short:7.2f} MiB above a short sequence")
    loop = binomial_checkpoint(lstm, STEPS, CHECKPOINTS)
    value2, gradient2, seconds2, peak2 = measure(loop, params, inputs)
    print(f"checkpointed  loss {value2:.12f}  {seconds2:.2f} s  {peak2 - short:7.2f} MiB above a short sequence")
    worst = max(numpy.max(numpy.abs(gradient[k] - gradient2[k])) / numpy.max(numpy.abs(gradient[k])) for k in params)
    print(
        f"{(peak - short) / (peak2 - short):.1f} times less memory at {seconds2 / seconds:.2f} times the time; "
        f"gradients agree to {worst:.1e}"
    )
    assert abs(value - value2) < 1e-14
    assert worst < 1e-12


if __name__ == "__main__":
    main()
