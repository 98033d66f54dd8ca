"""The checkpoint profiler on PyTorch: how many checkpoints there were, and how many bytes were not kept."""

import threading

import torch

import remat
from tests.frameworks.torch.checkpoint_programs import leaf, rand


def test_the_profiler_counts_every_checkpoint_and_the_bytes_that_are_not_kept():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    x, weights = torch.ones(10, 10), [torch.eye(10).requires_grad_() for _ in range(5)]
    for weight in weights:
        x = remat.checkpoint(lambda x, w: torch.tanh(torch.sin(x @ w)), x, weight)
    x.sum().backward()
    profiler.stop_tracking()
    remat.checkpoint(torch.sin, weights[0])
    assert profiler.checkpoint_count() == 5
    assert profiler.memory_saved() == 5 * 400  # x @ w for the sine; what tanh gave is the result
    profiler.reset_statistics()
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (0, 0)


def test_the_profiler_counts_inner_checkpoints_once_and_no_recomputation():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    x = leaf(8)
    remat.checkpoint(lambda x: remat.checkpoint(torch.tanh, x.sin()), x).sum().backward()
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 2
    profiler.reset_statistics()


def test_the_profiler_counts_all_threads():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()

    def work():
        for _ in range(20):
            remat.checkpoint(lambda x: x.exp().sin(), leaf(3)).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 80
    assert profiler.memory_saved() == 80 * 24  # what exp gave
    profiler.reset_statistics()


def test_the_profiler_counts_no_results_and_nothing_that_needs_no_gradient():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    remat.checkpoint(torch.sin, rand(3))
    assert profiler.checkpoint_count() == 0
    y = remat.checkpoint(torch.exp, leaf(3))
    profiler.stop_tracking()
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (1, 0)
    assert y.requires_grad
    profiler.reset_statistics()
