"""Sequences in time: inputs given as one tensor or as a list of steps, outputs with the initial one put first."""

from typing import Any

import torch

from remat.loops import legacy_inputs as sequences

__all__ = ["stacked", "with_first"]


def stacked(inputs: Any, steps: int) -> Any:
    """Inputs with one row for each step: a list or tuple of inputs is stacked, anything else is that already."""
    return sequences.stacked(inputs, steps, lambda rows: torch.stack([torch.as_tensor(row) for row in rows]))


def with_first(first: Any, after: Any, steps: int) -> Any:
    """The initial value and those after each step: one tensor, or a list of them if a value is a container."""
    return sequences.with_first(first, after, steps, _joined)


def _joined(first: Any, rows: Any) -> Any:
    return torch.cat([torch.as_tensor(first).unsqueeze(0), rows])
