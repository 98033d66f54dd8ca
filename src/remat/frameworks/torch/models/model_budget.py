"""The bytes that a model's activations may take: a number, a fraction of free memory, or all that training leaves.

"auto" is the free memory of the model's device, minus gradients and optimiser state that do not exist yet, minus a
twentieth for fragmentation. Without an optimizer, two numbers per trained parameter are counted, as for Adam.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from remat.errors import ProblemError
from remat.frameworks.torch.leaves import nbytes
from remat.frameworks.torch.meter import free_bytes
from remat.memory_meter import free_host_bytes
from remat.units import to_bytes

__all__ = ["ModelBudget"]

_AUTO = 0.95


@dataclass(frozen=True)
class ModelBudget:
    """A requested budget; `bytes` evaluates it now."""

    memory: int | float | str
    per_parameter: int | None = 2  # numbers that the optimiser has yet to allocate per element of a parameter

    @classmethod
    def parse(cls, memory: Any, optimizer: "torch.optim.Optimizer | None") -> "ModelBudget":
        """The budget for these arguments."""
        if isinstance(memory, float) and not 0.0 < memory <= 1.0:
            raise ProblemError(f"memory={memory!r}: a fraction of what is free lies between 0 and 1")
        if memory != "auto" and not isinstance(memory, float):
            memory = to_bytes(memory, "memory", least=1)
        return cls(memory, _numbers_to_come(optimizer))

    def bytes(self, model: nn.Module, devices: Sequence[torch.device]) -> int:
        """The budget in bytes, above what is allocated now."""
        if isinstance(self.memory, int):
            return self.memory
        free = free_bytes(devices)
        free = free_host_bytes() if free is None else free
        if free is None:
            raise ProblemError("this system does not say how much memory is free: give memory= in bytes")
        if isinstance(self.memory, float):
            return int(self.memory * free)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = sum(nbytes(parameter) for parameter in trained if parameter.grad is None)
        to_come = gradients + (self.per_parameter or 0) * sum(map(nbytes, trained))
        return max(1, int(_AUTO * (free - to_come)))


def _numbers_to_come(optimizer: "torch.optim.Optimizer | None") -> int:
    if optimizer is None:
        return 2
    if optimizer.state:  # it has made its first step
        return 0
    options = optimizer.defaults
    return 2 if "betas" in options else 1 if options.get("momentum") else 0 if "momentum" in options else 2
