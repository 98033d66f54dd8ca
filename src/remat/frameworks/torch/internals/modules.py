"""What is registered on one `nn.Module` itself, not on its children, and whether something was compiled.

This is the only file that uses private names of modules. For reading, `named_buffers(recurse=False)` and
`named_parameters(recurse=False)` would do at six times the cost, and every segment asks for every module in it. For
writing there is no public way: `setattr` refuses a tensor where a Parameter is registered, runs the user's own
`__setattr__`, and turns a buffer that was deleted meanwhile into an attribute. All names below were checked with 2.11
and 2.13.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import parametrize

from remat.closures.references import ItemRef, attributes_of

__all__ = [
    "OWN",
    "WEIGHTS_CACHE",
    "Parts",
    "all_parts",
    "backward_hooks_exchanged",
    "cached_weights",
    "children_of",
    "in_torch_checkpoint",
    "is_compiled",
    "is_uninitialized",
    "parts_of",
    "registered_tensors",
    "script_as_written",
]

_PLAIN = (Tensor, nn.Parameter)
OWN = frozenset(nn.Module().__dict__)  # attributes that every module has
# The attributes of a module that hold hooks which its calls run, or which insert nodes into its graph.
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# How many `parametrize.cached` blocks are active, and the dict of their weights, which is replaced when they end.
WEIGHTS_CACHE = [ItemRef(vars(parametrize), name) for name in ("_cache_enabled", "_cache")]
parts_of = itemgetter("_parameters", "_buffers", "_modules", *_HOOKS)  # the dicts among a module's attributes


def cached_weights() -> list[dict[tuple[int, str], Tensor | None]]:
    """The dict of cached parametrized weights while a `parametrize.cached` block is active; otherwise no dict."""
    return [parametrize._cache] if parametrize._cache_enabled else []


def children_of(module: nn.Module) -> Iterable[nn.Module | None]:
    """The children of a module; `children()` takes ten times as long, because it also removes duplicates."""
    return module._modules.values()


Parts = tuple[list[nn.Module], list[Tensor]]


def all_parts(model: nn.Module) -> Parts:
    """A model's modules and parameters, each once; `modules()` and `parameters()` take six times as long."""
    modules = {model: None}  # hashed by identity
    parameters: list[Tensor | None] = []
    waiting = [model]
    for module in waiting:
        parameters += [each for _, each in module._parameters.items()]  # TorchScript's dicts have no `values`
        children = [each for each in module._modules.values() if each not in modules and each is not None]
        modules.update(dict.fromkeys(children))
        waiting += dict.fromkeys(children)
    return waiting, [*{id(each): each for each in parameters if each is not None}.values()]


def registered_tensors(module: nn.Module) -> Iterator[Tensor | None]:
    """A module's own parameters and buffers, None for those registered as None."""
    for registry in (module._parameters, module._buffers):
        yield from (tensor for _, tensor in registry.items())  # TorchScript's dicts have no `values`


def is_uninitialized(tensor: Tensor | None) -> bool:
    """Whether a parameter or buffer belongs to a lazy module, which gives it a shape and values at its first call."""
    return type(tensor) not in _PLAIN and isinstance(tensor, UninitializedParameter | UninitializedBuffer)


def is_compiled(value: Any) -> bool:
    """Whether a value is a function or module returned by torch.compile.

    There is no public query. A compiled function stores the original in `_torchdynamo_orig_callable`, a compiled module
    has it as its child `_orig_mod`.
    """
    # Look in the registry: `hasattr` would run the user's `__getattr__`.
    if isinstance(value, nn.Module):
        return "_orig_mod" in value._modules
    return "_torchdynamo_orig_callable" in (attributes_of(value) or ())


class script_as_written:  # used as a function
    """A context in which TorchScript runs unoptimized.

    Its optimizer takes effect from the second run on, which then saves other tensors than the first.
    `torch.jit.optimized_execution` does the same at three times the cost, and every segment enters this context twice.
    """

    __slots__ = ("_optimizes",)

    def __enter__(self) -> None:
        self._optimizes = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_graph_executor_optimize(self._optimizes)


@contextmanager
def backward_hooks_exchanged(modules: Iterable[nn.Module], exchanged: Callable[[Any], Any] | None) -> Iterator[None]:
    """A context in which the modules' backward hooks are replaced, or removed if `exchanged` is None."""
    every = {child for module in modules for child in module.modules()}
    hooked = [hooks for each in every for hooks in (each._backward_hooks, each._backward_pre_hooks) if hooks]
    kept = [dict(hooks) for hooks in hooked]
    try:
        for hooks in hooked:
            for key in [*hooks]:
                if exchanged is None:
                    del hooks[key]
                else:
                    hooks[key] = exchanged(hooks[key])
        yield
    finally:
        for hooks, before in zip(hooked, kept, strict=True):
            hooks.clear()
            hooks.update(before)


def in_torch_checkpoint() -> bool:
    """Whether the caller is inside torch.utils.checkpoint, which has the innermost hooks or is on the stack."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint":
        return True
    # The reentrant variant has no hooks: a function of that module runs the block without gradients.
    frame = None if torch.is_grad_enabled() else sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None
