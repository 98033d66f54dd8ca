"""Adaptive checkpoints under autograd, and what the checkpoint profiler counts."""

import autograd.numpy as np
import numpy
import pytest
from autograd import elementwise_grad, grad

import remat
from tests.frameworks.conftest import assert_same
from tests.frameworks.numpy.checkpoint_programs import X


def test_the_profiler_counts_every_checkpoint_and_what_is_not_kept():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    weights = [numpy.eye(10, dtype=numpy.float32) for _ in range(5)]

    def net(weights):
        x = numpy.ones((10, 10), numpy.float32)
        for weight in weights:
            x = remat.checkpoint(lambda x, w: np.tanh(np.sin(x @ w)), x, weight)
        return np.sum(x)

    grad(net)(weights)
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 5
    assert 5 * 2 * 400 <= profiler.memory_saved() <= 5 * 2 * 400 + 5 * 5000  # two arrays, and Python's own objects
    profiler.reset_statistics()


def test_the_profiler_does_not_count_arrays_that_are_there_anyway():
    profiler, data = remat.CheckpointProfiler, numpy.ones((1000, 1000))
    profiler.reset_statistics()
    profiler.start_tracking()
    grad(lambda w: np.sum(remat.checkpoint(lambda w: np.tanh(data @ w), w)))(numpy.zeros(1000))
    profiler.stop_tracking()
    assert 8000 <= profiler.memory_saved() < 30_000
    profiler.reset_statistics()


def test_the_profiler_counts_inner_checkpoints_once_and_no_recomputation():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    grad(lambda x: np.sum(remat.checkpoint(lambda x: remat.checkpoint(np.tanh, np.sin(x)), x)))(X)
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 2
    profiler.reset_statistics()


@pytest.mark.parametrize(("count", "threshold", "recomputed"), [(4, 1000, 0), (10_000, 1000, 1), (125, 1000, 0)])
def test_adaptive_recomputes_only_what_is_strictly_larger(count, threshold, recomputed):
    runs = []

    def fn(x):
        runs.append(1)
        return np.exp(np.sin(x))

    x = numpy.ones(count)
    remat.CheckpointProfiler.reset_statistics()
    remat.CheckpointProfiler.start_tracking()
    found = grad(lambda x: np.sum(remat.adaptive_checkpoint(fn, x, threshold=threshold)))(x)
    remat.CheckpointProfiler.stop_tracking()
    assert len(runs) == 1 + recomputed
    assert remat.CheckpointProfiler.checkpoint_count() == recomputed
    assert_same(found, elementwise_grad(fn)(x), tolerance=0.0)
    remat.CheckpointProfiler.reset_statistics()
