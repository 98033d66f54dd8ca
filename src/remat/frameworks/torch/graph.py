"""What a step closes over, on PyTorch: tensors that want a gradient, modules with statistics, random generators.

Closures are searched for candidates, and the graph of one recorded step says which tensors it really uses. What it uses
and no search found raises an error: nothing that wants a gradient is left out silently.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from remat.closures.capture import BaseCaptureFilter
from remat.frameworks.torch.replayable_state import BufferState, GeneratorState

functorch: Any = torch._C._functorch

__all__ = [
    "DifferentiableTensors",
    "external_edges",
    "fsdp_modules_called",
    "gradient_edge",
    "hooks_suspended",
    "is_functorch_wrapped",
    "next_sequence_nr",
]


def is_functorch_wrapped(leaf: Any) -> bool:
    """Whether a tensor belongs to a transform of torch.func that runs now."""
    if not isinstance(leaf, Tensor) or not functorch.is_functorch_wrapped_tensor(leaf):
        return False
    return bool(0 <= functorch.maybe_get_level(leaf) <= (functorch.maybe_current_level() or 0))


class DifferentiableTensors(BaseCaptureFilter):
    """What is looked for in closures: tensors that want a gradient; modules and generators are noted on the way."""

    opaque_types: ClassVar[tuple[type, ...]] = (Tensor, torch.dtype, torch.device, torch.Size, torch.Generator, Node)
    atomic_types: ClassVar[frozenset[type]] = frozenset({torch.dtype, torch.device})

    def __init__(self) -> None:
        self.modules: list[torch.nn.Module] = []
        self.compiled = False
        self.generators: list[torch.Generator] = []

    def accepts(self, leaf: Any) -> bool:
        """Whether a leaf is a tensor that wants a gradient."""
        if isinstance(leaf, torch.Generator) and all(leaf is not held for held in self.generators):
            self.generators.append(leaf)
        if not isinstance(leaf, Tensor):
            return False
        wraps = functorch.is_functorch_wrapped_tensor(leaf)
        return is_functorch_wrapped(leaf) if wraps else leaf.requires_grad

    def visit(self, value: Any, name: str) -> None:
        """Note a module, and whether anything is compiled: that runs on real tensors only."""
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
        if "_torchdynamo_orig_callable" in getattr(value, "__dict__", ()) or "_orig_mod" in getattr(
            value, "_modules", ()
        ):
            self.compiled = True

    @property
    def replayable_states(self) -> list[Any]:
        """Private generators, and the buffers of modules that may gather something: in training, or small ones."""
        buffers = [BufferState(module) for module in self.modules if module._buffers]
        return [*map(GeneratorState, self.generators), *(each for each in buffers if each.may_change())]


def gradient_edge(tensor: Tensor) -> GradientEdge:
    """Where the gradient of a tensor comes into its graph; of a subclass too."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return get_gradient_edge(tensor)
    with torch._C.DisableTorchFunctionSubclass():
        return get_gradient_edge(tensor)


def next_sequence_nr() -> int:
    """The number that the next node of this thread will have, or a lower one."""
    with torch.enable_grad():
        return int(torch.zeros((), requires_grad=True).view(()).grad_fn._sequence_nr())  # type: ignore[union-attr]


def external_edges(ends: Sequence[Any], first: int) -> dict[tuple[Any, int], bool]:
    """Where the graph below these nodes leaves the steps: (node, output) of all tensors that it takes from outside.

    True for those that are leaves. Nodes of the steps have at least the number `first`.
    """
    found: dict[tuple[Any, int], bool] = {}
    stack = [node for node in ends if node is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        for after, output in node.next_functions:
            if after is None:
                continue
            if hasattr(after, "variable"):
                found[after, output] = True
            elif after._sequence_nr() < first:
                found[after, output] = False
            elif after not in seen:
                seen.add(after)
                stack.append(after)
    return found


@contextmanager
def hooks_suspended(tensors: Sequence[Tensor]) -> Iterator[None]:
    """A block in which hooks of these tensors are not called: they are called once, with the whole gradient."""
    hooked = [tensor._backward_hooks for tensor in tensors if tensor._backward_hooks]
    held = [dict(hooks) for hooks in hooked]
    for hooks in hooked:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(hooked, held, strict=True):
            hooks.update(before)


@contextmanager
def fsdp_modules_called(modules: Sequence[torch.nn.Module]) -> Iterator[list[Any]]:
    """Those of the modules, sharded by FSDP, that are called in the block: they take gradients in ways of their own."""
    called: list[Any] = []
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not any(isinstance(module, fsdp.FSDPModule) for module in modules):
        yield called
        return

    def note(module: torch.nn.Module, _: Any) -> None:
        if isinstance(module, fsdp.FSDPModule):
            called.append(module)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield called
    finally:
        handle.remove()
