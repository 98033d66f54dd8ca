"""Sequences in time: inputs given as one array or as a list of steps, outputs with the initial one put first."""

from typing import Any

import autograd.numpy as anp

from remat.frameworks.numpy.leaves import unpack
from remat.loops import legacy_inputs as sequences

__all__ = ["stacked", "with_first"]


def stacked(inputs: Any, steps: int) -> Any:
    """Inputs with one row for each step: a list or tuple of inputs is stacked, anything else is that already."""
    return sequences.stacked(unpack(inputs), steps, lambda rows: anp.stack(list(rows)), unpack)


def with_first(first: Any, after: Any, steps: int) -> Any:
    """The initial value and those after each step: one array, or a list of so many if a value is a container."""
    return sequences.with_first(first, after, steps, _joined, unpack)


def _joined(first: Any, rows: Any) -> Any:
    return anp.concatenate([anp.expand_dims(first, 0), rows])
