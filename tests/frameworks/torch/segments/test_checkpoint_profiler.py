"""The checkpoint profiler on PyTorch: how many checkpoints there were, and how many bytes were not kept."""

import threading

import torch

import remat
from tests.frameworks.torch.segments.checkpoint_programs import leaf, rand


def test_the_profiler_counts_all_threads(profiler):
    def work():
        for _ in range(20):
            remat.checkpoint(lambda x: x.exp().sin(), leaf(3)).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert profiler.checkpoint_count() == 80
    assert profiler.memory_saved() == 80 * 24  # what exp gave


def test_the_profiler_counts_no_results_and_nothing_that_needs_no_gradient(profiler):
    remat.checkpoint(torch.sin, rand(3))
    assert profiler.checkpoint_count() == 0
    y = remat.checkpoint(torch.exp, leaf(3))
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (1, 0)
    assert y.requires_grad
