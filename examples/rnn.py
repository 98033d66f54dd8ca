"""A basic RNN that is all visible state, by `binomial_checkpoint`: the same gradient in far less memory.

The output probabilities are a function of the whole state, so there is nothing to hide: the hidden part of the state is
the unit `ag_tuple(())`. Run it: python examples/rnn.py
"""

import gc
import time
import tracemalloc

import autograd.numpy as np
import numpy
from autograd import value_and_grad

from remat.legacy import ag_tuple, binomial_checkpoint

STEPS, SIZE, BATCH, CHECKPOINTS = 400, 32, 32, 20


def rnn(params, state, x):
    """(parameters, (hidden, visible), input) -> (hidden, visible)."""
    _, visible = state
    return ag_tuple((ag_tuple(()), np.tanh(np.dot(visible, params["w"]) + np.dot(x, params["u"]) + params["b"])))


def plain_loop(params, state, inputs):
    outputs = [state[1]]
    for x in inputs:
        state = rnn(params, state, x)
        outputs.append(state[1])
    return np.stack(outputs)


def main():
    rng = numpy.random.default_rng(0)
    params = {"w": rng.normal(size=(SIZE, SIZE)) / SIZE**0.5, "u": rng.normal(size=(4, SIZE)), "b": numpy.zeros(SIZE)}
    inputs = rng.normal(size=(STEPS, BATCH, 4))
    target = numpy.cumsum(inputs[..., 0], axis=0) / numpy.arange(1, STEPS + 1)[:, None]
    first = numpy.zeros((BATCH, SIZE))

    def loss(arguments, loop):
        params, first, inputs = arguments
        visible = loop(params, (ag_tuple(()), first), inputs)
        return np.mean((visible[1:, :, 0] - target) ** 2)

    loops = {"plain autograd": plain_loop, "binomial_checkpoint": binomial_checkpoint(rnn, STEPS, CHECKPOINTS)}
    results = {}
    for name, loop in loops.items():
        gradient = value_and_grad(loss)
        began = time.perf_counter()
        results[name] = gradient([params, first, inputs], loop)
        seconds = time.perf_counter() - began
        gc.collect()
        tracemalloc.start()
        gradient([params, first, inputs], loop)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{name:<20} loss {results[name][0]:.12f}  {seconds:.2f} s  {peak / 2**20:7.2f} MiB")
    (value, plain), (other, checkpointed) = results.values()
    assert abs(value - other) < 1e-14
    pairs = [(plain[0][key], checkpointed[0][key]) for key in params]
    pairs += [(plain[1], checkpointed[1]), (plain[2], checkpointed[2])]
    worst = max(numpy.max(numpy.abs(a - b)) / numpy.max(numpy.abs(a)) for a, b in pairs)
    print(f"gradients of parameters, state and inputs agree to {worst:.1e}")
    assert worst < 1e-12


if __name__ == "__main__":
    main()
