"""The model of `remat lstm` on PyTorch, with the same parameters and step as on NumPy."""

from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from remat.cli.lstm.model import Lstm
from remat.planners import Plan
from remat.progress import Progress

__all__ = ["TorchLstm"]


class TorchLstm(Lstm):
    """The LSTM on tensors, in double precision as on NumPy."""

    np: ClassVar[Any] = SimpleNamespace(dot=torch.matmul, tanh=torch.tanh, mean=torch.mean, sum=torch.sum)
    metered: ClassVar[bool] = True

    def __init__(self, steps: int, hidden: int, batch: int) -> None:
        super().__init__(steps, hidden, batch)
        self.params = {name: torch.from_numpy(array).requires_grad_() for name, array in self.params.items()}
        self.xs, self.targets = torch.from_numpy(self.xs), torch.from_numpy(self.targets)
        self.state = tuple(torch.from_numpy(array) for array in self.state)

    def gradient(self, budget: Plan | int, progress: Progress | None = None) -> tuple[float, dict[str, Any]]:
        """The loss and its gradient for all parameters."""
        value = self.loss(self.params, budget, progress)
        gradients = torch.autograd.grad(value, list(self.params.values()))
        return value.item(), {name: gradient.numpy() for name, gradient in zip(self.params, gradients, strict=True)}
