"""Memory of checkpoints under autograd: nothing is kept but the inputs."""

import gc
import tracemalloc
import weakref

import autograd.numpy as np
import numpy
from autograd import grad

import remat
from tests.frameworks.numpy.checkpoint_programs import X


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


def test_nothing_is_alive_after_the_gradient_without_collecting():
    seen = []

    def fn(x):
        y = np.sin(x)
        raw = y
        while hasattr(raw, "_value"):
            raw = raw._value
        seen.append(weakref.ref(raw))
        return np.exp(y)

    gc.collect()
    gc.disable()
    try:
        grad(lambda x: np.sum(remat.checkpoint(lambda x: remat.checkpoint(fn, x) * 2, x)))(X)
        assert len(seen) == 3
        assert all(each() is None for each in seen)
    finally:
        gc.enable()
