"""What closure conversion looks for in a step: tensors that require a gradient, modules, and random generators.

Closures are searched for candidates, and the graph of one recorded step says which tensors it really uses. A tensor
that it uses and that the search did not find raises an error: no gradient is lost silently.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from remat.closures.capture_filter import BaseCaptureFilter
from remat.frameworks.torch.functorch import in_transform, is_wrapped, wrapped_by_active_transform
from remat.frameworks.torch.modules import is_compiled

__all__ = ["DifferentiableTensors"]


class DifferentiableTensors(BaseCaptureFilter):
    """Accepts tensors that require a gradient; notes the modules that are found on the way."""

    opaque_types: ClassVar[tuple[type, ...]] = (Tensor, torch.dtype, torch.device, torch.Size, torch.Generator, Node)
    atomic_types: ClassVar[frozenset[type]] = frozenset({torch.dtype, torch.device})

    def __init__(self, *, searching: bool = True) -> None:
        self._searching = searching
        # Autograd shows what steps use of a set. Transforms of torch.func show nothing: all must be rebound.
        self.rebinds_sets = in_transform()
        self.modules: list[torch.nn.Module] = []
        self.compiled = False

    def __bool__(self) -> bool:
        return self._searching

    def accepts(self, leaf: Any) -> bool:
        """Whether a leaf is a tensor that requires a gradient, or that torch.func differentiates or maps."""
        if not isinstance(leaf, Tensor):
            return False
        # A wrapped tensor requires a gradient at the level of its transform, which `requires_grad` does not show here.
        return wrapped_by_active_transform(leaf) if is_wrapped(leaf) else leaf.requires_grad

    def visit(self, value: Any, name: str) -> None:
        """Note a module, and whether anything is compiled."""
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
        if is_compiled(value):
            self.compiled = True
