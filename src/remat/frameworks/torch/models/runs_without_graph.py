"""Calls without a graph, to measure what they make; functions that cannot do without a graph get one."""

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
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        pass
    with torch.enable_grad():
        return run()
