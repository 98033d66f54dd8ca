"""Calls without a graph, to measure what they make; functions that cannot do without a graph get one.

What it can miss: PyTorch has one type for all its errors, so one that speaks of gradients counts as asking for a graph.
Others, such as a process that waits in vain, must not be followed by a second run.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["without_graph_if_possible"]

T = TypeVar("T")


def without_graph_if_possible(run: Callable[[], T]) -> T:
    """What `run` returns without a graph; with one if it fails so, as where it differentiates or hooks tensors."""
    try:
        with torch.no_grad():
            return run()
    except RuntimeError as error:
        if "grad" not in str(error):
            raise
    with torch.enable_grad():
        return run()
