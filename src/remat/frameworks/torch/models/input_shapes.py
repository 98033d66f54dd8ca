"""The key of a model's plan: the shapes of its inputs, and everything else that its bytes depend on."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from remat.frameworks.torch.internals.autocast import AutocastState
from remat.frameworks.torch.internals.modules import Parts, all_parts
from remat.frameworks.torch.leaves import nbytes
from remat.pytree import flatten
from remat.units import bytes_text

__all__ = ["InputShapes"]

_FEWER = 0.8  # inputs with at least this share of the elements use a plan for larger ones


class InputShapes(NamedTuple):
    """Shape, dtype, device and `requires_grad` of each tensor; other arguments; the model's state."""

    tensors: tuple[tuple[tuple[int, ...], torch.dtype, str, bool], ...]
    others: tuple[str, ...]
    training: bool
    parameters: tuple[int, int]  # bytes of those that require gradients, and of all
    autocast: Hashable
    flags: bytes  # `requires_grad` of each parameter, `training` of each module

    @classmethod
    def of(
        cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts | None = None
    ) -> "InputShapes":
        """The key of a call; `parts` are all modules and parameters, if they are known."""
        leaves, (modules, parameters) = flatten((args, kwargs))[0], parts or all_parts(model)
        sizes = [each.nbytes if type(each) is nn.Parameter else nbytes(each) for each in parameters]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        others = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        return cls(
            tuple((tuple(leaf.shape), leaf.dtype, str(leaf.device), leaf.requires_grad) for leaf in tensors),
            tuple(repr(leaf) if isinstance(leaf, int | float | str | None) else type(leaf).__name__ for leaf in others),
            model.training,
            (sum([size for size, each in zip(sizes, parameters, strict=True) if each.requires_grad]), sum(sizes)),
            AutocastState().key,
            bytes([each.requires_grad for each in parameters] + [each.training for each in modules]),
        )

    def covers(self, other: "InputShapes") -> bool:
        """Whether a plan for this key also serves the other: its inputs are smaller, but not by much."""
        if self[1:] != other[1:] or len(self.tensors) != len(other.tensors):
            return False
        pairs = list(zip(self.tensors, other.tensors, strict=True))
        if any(a[1:] != b[1:] or len(a[0]) != len(b[0]) for a, b in pairs):
            return False
        smaller = all(n <= m for a, b in pairs for m, n in zip(a[0], b[0], strict=True))
        return smaller and all(torch.Size(b[0]).numel() >= _FEWER * torch.Size(a[0]).numel() for a, b in pairs)

    @property
    def tensors_text(self) -> str:
        """Dtypes and shapes of the tensors."""
        texts = [f"{str(dtype).removeprefix('torch.')} {list(shape)}" for shape, dtype, _, _ in self.tensors]
        return ", ".join(texts) or "no tensors"

    @property
    def text(self) -> str:
        """The description of the call in messages."""
        mode = "training" if self.training else "evaluation"
        return f"{self.tensors_text} in {mode}, with {bytes_text(self.parameters[0])} of trained parameters"

    def differences(self, other: "InputShapes") -> str:
        """The names of the parts in which another call differs."""
        names = ("its tensors", "its other arguments", "train or eval", "bytes of parameters", "autocast")
        found = [name for name, a, b in zip(names, self, other, strict=False) if a != b]
        flags = "which parameters are frozen, or which modules are in training"
        return " and ".join(found or [flags])
