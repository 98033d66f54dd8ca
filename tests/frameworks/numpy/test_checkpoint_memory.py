"""Memory of checkpoints under autograd: nothing is kept but the inputs."""

import tracemalloc

import autograd.numpy as np
import numpy
from autograd import grad

import remat


def test_nothing_is_kept_but_the_inputs():
    x = numpy.ones(100_000)

    def fn(x):
        for _ in range(20):
            x = np.sin(x)
        return x

    def peak(run):
        tracemalloc.start()
        loss = []

        def total(x):
            for _ in range(5):
                x = run(fn, x)
            loss.append(tracemalloc.get_traced_memory()[0])  # at the turn
            return np.sum(x)

        grad(total)(x)
        tracemalloc.stop()
        return loss[0]

    plain, ours = peak(lambda fn, x: fn(x)), peak(remat.checkpoint)
    assert plain > 95 * x.nbytes
    assert ours < 8 * x.nbytes


def test_the_profiler_does_not_count_arrays_that_are_there_anyway(profiler):
    data = numpy.ones((1000, 1000))
    grad(lambda w: np.sum(remat.checkpoint(lambda w: np.tanh(data @ w), w)))(numpy.zeros(1000))
    assert 8000 <= profiler.memory_saved() < 30_000
