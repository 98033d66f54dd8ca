"""A step of a loop on PyTorch, as a function of the tensors that it captured, and what is known about it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from remat.closures.capture import ConvertedClosure
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.autocast import AutocastState

__all__ = ["Activity", "AnalyzedStep"]


@dataclass
class Activity:
    """Which leaves depend on differentiable inputs, so that gradients flow through them.

    `aliases[k] = j`: carry leaf k *is* output leaf j, so its cotangents must be added in the order of plain autograd.
    """

    carry: list[bool]
    xs: list[bool]
    ys: list[bool] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)


@dataclass
class AnalyzedStep:
    """A step after closure conversion, with what the probe of its first run found out."""

    captured: ConvertedClosure
    autocast: AutocastState
    replayable_states: Sequence[ReplayableState]
    activity: Activity
    under_functorch: bool = False  # whether torch.func runs the loop at another level
    capture_ids: list[int] = field(default_factory=list)  # of the captured tensors among all found; -1 for others
    is_leaf: list[bool] = field(default_factory=list)  # which of them steps use as they are: leaves of the graph
    may_capture_more: bool = False  # whether the step could reach more tensors than it used at first
    modules: list[torch.nn.Module] = field(default_factory=list)  # that it closes over
    compiled: bool = False  # whether it, or something that it closes over, is compiled
    fsdp_modules: list[Any] = field(default_factory=list)  # modules of FSDP that the step calls

    def rebind(self, values: list[Any]) -> AbstractContextManager[Callable[..., Any]]:
        """The step, with these values in the places of what it captured."""
        return self.captured.rebind(dict(zip(self.capture_ids, values, strict=True)))
