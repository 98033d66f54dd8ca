"""A step of a loop on PyTorch after closure conversion, with the state that steps of a later sweep start from."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from remat.closures.capture import ConvertedClosure
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.autocast import AutocastState
from remat.frameworks.torch.loop_contents import LoopContents

__all__ = ["AnalyzedStep"]


@dataclass(frozen=True)
class AnalyzedStep:
    """A step after closure conversion."""

    closure: ConvertedClosure
    autocast: AutocastState
    replayable_states: Sequence[ReplayableState]  # random generators, buffers and Python contents that steps may change
    contents: LoopContents  # one of them
    under_functorch: bool = False  # whether torch.func runs the loop at another level
    modules: Sequence[Module] = ()  # that it closes over
    compiled: bool = False  # whether it, or something that it closes over, is compiled
    levels: Sequence[int] = ()  # of the vmaps for which it runs once, from the outermost on

    def rebind(self, values: Mapping[int, Tensor]) -> AbstractContextManager[Callable[..., Any]]:
        """The step with these as its captured tensors, by their index, as long as the context lasts."""
        return self.closure.rebind(values)
