"""What a benchmark gets of a model: the module, an example of its arguments, the loss, and its blocks by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Case", "build", "names_of"]


@dataclass(frozen=True)
class Case:
    """A model to train for one step.

    `sample` has the positional arguments, or keyword arguments in a dict; `loss` makes a number of the output. `blocks`
    are names of modules, in the order in which they run, that torch.utils.checkpoint may wrap; `chained` says that each
    is called with the output of the one before (and keyword arguments that are the same for all). `by_hand` has
    functions that put checkpoints inside of a block, as people do who know it, by a name for what they drop.
    """

    title: str
    model: nn.Module
    sample: tuple[Any, ...] | dict[str, Any]
    loss: Callable[[Any], Tensor]
    blocks: Sequence[str]
    chained: bool
    by_hand: Mapping[str, Callable[[nn.Module], None]] = field(default_factory=dict)

    def step(self, model: nn.Module) -> Tensor:
        """One forward and backward of a model on the sample; nothing but the loss is held in between."""
        loss = self.loss(model(**self.sample) if isinstance(self.sample, dict) else model(*self.sample))
        loss.backward()
        return loss.detach()


def build(make: Callable[[], nn.Module], device: str, dtype: torch.dtype) -> nn.Module:
    """A module whose parameters are made on the device and in the dtype, always the same ones."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make()
    finally:
        torch.set_default_dtype(before)


def names_of(model: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> list[str]:
    """The names of the modules of these classes, in order."""
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]
