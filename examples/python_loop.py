"""An ordinary Python loop, checkpointed by its source: no step function, and no framework in the code.

`@remat.checkpointed` rewrites the `for` and `while` loops of a function; `remat.grad_with_checkpointing` differentiates
one that is written in plain NumPy. `model.explain()` says what was done with each loop.
Run it: python examples/python_loop.py
"""

import statistics
import time
import tracemalloc

import autograd.numpy as np
import numpy
from autograd import grad

import remat

STEPS, SIZE, CHECKPOINTS, ROUNDS = 1000, 64, 31, 3


def rnn_model(x, W, b, steps):
    """The loop as one writes it."""
    for _ in range(steps):
        x = np.tanh(np.dot(x, W) + b)
    return np.sum(x**2)


def plain_numpy(x, W, b, steps):
    """The same without autograd's NumPy."""
    for _ in range(steps):
        x = numpy.tanh(numpy.dot(x, W) + b)
    return numpy.sum(x**2)


def peak(gradient, arguments):
    tracemalloc.start()
    gradient(*arguments)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 2**20


def main():
    rng = numpy.random.default_rng(0)
    arguments = rng.normal(size=(16, SIZE)), rng.normal(size=(SIZE, SIZE)) / SIZE**0.5, rng.normal(size=SIZE), STEPS
    checkpointed = remat.checkpointed(slots=CHECKPOINTS)(rnn_model)
    by_source = remat.grad_with_checkpointing(plain_numpy, wrt=(0, 1, 2), num_checkpoints=CHECKPOINTS)
    gradients = {
        "plain autograd": grad(rnn_model, (0, 1, 2)),
        "@remat.checkpointed": grad(checkpointed, (0, 1, 2)),
        "grad_with_checkpointing": by_source,
    }
    results = {name: gradient(*arguments) for name, gradient in gradients.items()}
    times = {name: [] for name in gradients}
    for _ in range(ROUNDS):
        for name, gradient in gradients.items():
            began = time.process_time()
            gradient(*arguments)
            times[name].append(1e3 * (time.process_time() - began))
    peaks = {name: peak(gradient, arguments) for name, gradient in gradients.items()}
    for name, found in times.items():
        spread = f"{statistics.median(found):6.0f} ms ({min(found):.0f} to {max(found):.0f})"
        print(f"{name:<24} {peaks[name]:7.2f} MiB  {spread}")
    print(checkpointed.explain())
    expected = results["plain autograd"]
    pairs = [pair for found in results.values() for pair in zip(found, expected, strict=True)]
    worst = max(numpy.max(numpy.abs(a - b)) / numpy.max(numpy.abs(b)) for a, b in pairs)
    print(f"gradients of x, W and b agree to {worst:.1e}")
    assert worst < 1e-12
    assert peaks["@remat.checkpointed"] < peaks["plain autograd"] / 4


if __name__ == "__main__":
    main()
