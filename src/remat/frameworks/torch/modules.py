"""What is registered on one `nn.Module` itself, not on its children, and whether something was compiled.

The only file that uses private names of modules. `named_buffers(recurse=False)` and `named_parameters(recurse=False)`
would do for reading, at six times the cost, and every segment asks for every module in it. For writing there is no
public way: `setattr` refuses a tensor where a Parameter is registered, runs the user's own `__setattr__`, and makes an
attribute of a buffer that was deleted meanwhile. All names below were checked with 2.11 and 2.13.
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
# Attributes of every module with hooks that its calls run or that insert nodes into its graph.
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# How many blocks of `parametrize.cached` last, and the dict for their weights, which is another one after them.
WEIGHTS_CACHE = [ItemRef(vars(parametrize), name) for name in ("_cache_enabled", "_cache")]
parts_of = itemgetter("_parameters", "_buffers", "_modules", *_HOOKS)  # of the attributes of a module: its dicts


def cached_weights() -> list[dict[tuple[int, str], Tensor | None]]:
    """The dict in which weights with parametrizations are while a block of `parametrize.cached` lasts; else none."""
    return [parametrize._cache] if parametrize._cache_enabled else []


def children_of(module: nn.Module) -> Iterable[nn.Module | None]:
    """The children of a module; `children()` does the same at ten times the cost, and looks for the same one twice."""
    return module._modules.values()


Parts = tuple[list[nn.Module], list[Tensor]]


def all_parts(model: nn.Module) -> Parts:
    """A model's modules and parameters, each once; `modules()` and `parameters()` take six times as long."""
    modules = {model: None}  # hashed by identity
    parameters: list[Tensor | None] = []
    waiting = [model]
    for module in waiting:
        parameters += [each for _, each in module._parameters.items()]  # TorchScript's have no `values`
        children = [each for each in module._modules.values() if each not in modules and each is not None]
        modules.update(dict.fromkeys(children))
        waiting += dict.fromkeys(children)
    return waiting, [*{id(each): each for each in parameters if each is not None}.values()]


def registered_tensors(module: nn.Module) -> Iterator[Tensor | None]:
    """A module's own parameters and buffers, None for those registered as None."""
    for registry in (module._parameters, module._buffers):
        yield from (tensor for _, tensor in registry.items())  # TorchScript's have no `values`


def is_uninitialized(tensor: Tensor | None) -> bool:
    """Whether a lazy module makes the shape and values of this parameter or buffer when it is first called."""
    return type(tensor) not in _PLAIN and isinstance(tensor, UninitializedParameter | UninitializedBuffer)


def is_compiled(value: Any) -> bool:
    """Whether a value is a function or module that torch.compile has returned.

    There is no public query. Compiled functions name the original in `_torchdynamo_orig_callable`, compiled modules
    have it as the child `_orig_mod`.
    """
    # By the registry, not by `hasattr`, which would run a `__getattr__` of the user's.
    if isinstance(value, nn.Module):
        return "_orig_mod" in value._modules
    return "_torchdynamo_orig_callable" in (attributes_of(value) or ())


class script_as_written:  # used as a function
    """A block in which TorchScript runs as it is written.

    Its optimizer takes effect from the second run on, and then saves other tensors. `torch.jit.optimized_execution`
    does the same at three times the cost, and every segment enters this block twice.
    """

    __slots__ = ("_optimizes",)

    def __enter__(self) -> None:
        self._optimizes = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_graph_executor_optimize(self._optimizes)


@contextmanager
def backward_hooks_exchanged(modules: Iterable[nn.Module], exchanged: Callable[[Any], Any] | None) -> Iterator[None]:
    """A block in which modules have other backward hooks, or none."""
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
    """Whether this runs inside of a torch.utils.checkpoint: it has the innermost hooks on saved tensors, or runs it."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint":
        return True
    # A reentrant one has no hooks: it runs what is inside without gradients, in a function of that module.
    frame = None if torch.is_grad_enabled() else sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None
