"""A step of a loop on PyTorch after closure conversion, and what the probe of its first run has found out."""

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
    """Which leaves are active: they depend on a tensor that requires a gradient, so they may have a cotangent.

    `aliases[k] = j`: carry leaf k *is* output leaf j (the step returns one tensor as both), so that its cotangents must
    be added in the order in which plain autograd would, see `TorchBackend.pull_back`.
    """

    carry: list[bool]
    xs: list[bool]
    ys: list[bool] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)


@dataclass
class AnalyzedStep:
    """A step after closure conversion, with the state that steps of a later sweep start from."""

    captured: ConvertedClosure  # all tensors that were found in closures
    autocast: AutocastState
    replayable_states: Sequence[ReplayableState]  # random generators and buffers that steps may change
    activity: Activity
    under_functorch: bool = False  # whether torch.func runs the loop at another level
    # By captured tensor: its index in `captured`, -1 if only the graph showed it; whether it is a leaf of the graph.
    # Steps use leaves as they are, so that `.grad` and hooks work; other tensors are rebound to detached ones.
    capture_ids: list[int] = field(default_factory=list)
    is_leaf: list[bool] = field(default_factory=list)
    may_capture_more: bool = False  # whether the step could reach tensors that its first run did not use
    modules: list[torch.nn.Module] = field(default_factory=list)  # that it closes over
    compiled: bool = False  # whether it, or something that it closes over, is compiled
    fsdp_modules: list[Any] = field(default_factory=list)  # FSDP modules that the step calls

    def rebind(self, values: list[Any]) -> AbstractContextManager[Callable[..., Any]]:
        """The step with these as its captured tensors, as long as the context lasts."""
        return self.captured.rebind(dict(zip(self.capture_ids, values, strict=True)))
