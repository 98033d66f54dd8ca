"""Memory of checkpointed segments: nothing is kept but the inputs."""

import gc
import weakref

import numpy

import remat
from tests.frameworks.untracked import Log

from .frameworks import where_python_runs_each_step
from .segments import plainly


@where_python_runs_each_step
def test_nothing_is_kept_but_the_inputs_and_nothing_at_all_after_the_gradient(framework, x):
    np, seen = framework.np, Log()

    def note(value):
        seen.append(weakref.ref(framework.storage(value)))
        return value

    def alive():
        return sum(each() is not None for each in seen)

    def fn(x):
        return np.exp(note(np.cos(note(np.sin(x)))))

    def loss(x):
        y = remat.checkpoint(lambda x: remat.checkpoint(fn, note(np.tanh(x))) * 2, x)
        assert (len(seen), alive()) == (3, 0)
        return np.sum(y)

    gc.collect()
    gc.disable()
    try:
        framework.gradient(loss, x)
        assert len(seen) > 3
        assert alive() == 0
    finally:
        gc.enable()


@where_python_runs_each_step  # on CPUs, XLA merges what is recomputed with what was computed first
def test_peaks_are_lower_than_those_of_plain_calls(framework):
    np, size = framework.np, 128
    w = framework.array(numpy.random.default_rng(0).normal(size=(size, size)) / size)

    def chain(x):
        for _ in range(8):
            x = np.tanh(np.dot(x, w))
        return x

    def peak(run):
        def net(x):
            for _ in range(6):
                x = run(chain, x)
            return np.sum(x)

        return framework.peak(net, framework.array(numpy.ones((size, size)))) / (size * size * 8)

    plain, ours = peak(plainly), peak(remat.checkpoint)
    assert plain >= 48
    assert ours < 0.6 * plain
