"""torch.func transforms and forward-mode AD: whether one is active, and which of them a tensor belongs to.

This is the only file that queries functorch's interpreter stack. PyTorch has no public query for it; all names below
were checked with 2.11 and 2.13.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode

from remat.errors import StepError
from remat.pytree import flatten

__all__ = [
    "HiddenTensorsRefused",
    "HooksRefused",
    "below_transforms",
    "below_vmap",
    "escaped_its_transform",
    "in_forward_mode",
    "in_transform",
    "is_wrapped",
    "level_above",
    "outside_transforms",
    "refuses_hooks",
    "remember_transforms",
    "requires_grad_somewhere",
    "uses_transforms",
    "with_batch_levels",
    "wrapped_by_active_transform",
]

_functorch: Any = torch._C._functorch  # no stubs

_DEAD = -2  # the level of a wrapper whose transform has ended


def in_transform() -> bool:
    """Whether a torch.func transform (grad, vjp, jvp, vmap, functionalize) is active."""
    return _functorch.maybe_current_level() is not None


def outside_transforms() -> AbstractContextManager[object]:
    """A context in which no transform is active, for work on tensors that none of them has wrapped.

    Transforms record and map every operation, even on such tensors, and forbid writing into them.
    """
    return temporarily_clear_interpreter_stack() if in_transform() else nullcontext()


def in_forward_mode() -> bool:
    """Whether a `torch.autograd.forward_ad.dual_level` is active."""
    return torch.autograd.forward_ad._current_level >= 0  # no public query; -1 outside of every level


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor is the wrapper of some transform, active or ended."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def requires_grad_somewhere(leaf: Any) -> bool:
    """Whether a leaf is a tensor that requires a gradient, in plain autograd or in a transform that wraps it."""
    while isinstance(leaf, Tensor) and not leaf.requires_grad and is_wrapped(leaf):
        leaf = _functorch.get_unwrapped(leaf)
    return isinstance(leaf, Tensor) and leaf.requires_grad


def below_transforms(leaf: Any) -> Any:
    """The leaf, or the tensor inside all wrappers of transforms."""
    while isinstance(leaf, Tensor) and is_wrapped(leaf):
        leaf = _functorch.get_unwrapped(leaf)
    return leaf


def below_vmap(leaf: Any) -> Any:
    """The leaf, or the tensor of the whole batch inside the wrappers of vmap."""
    while isinstance(leaf, Tensor) and _functorch.is_batchedtensor(leaf):
        leaf = _functorch.get_unwrapped(leaf)
    return leaf


def level_above() -> int:
    """The level of the transform that is handling the current operation, and has stepped down for it."""
    return _current_level() + 1


def with_batch_levels(leaf: Any, levels: Sequence[int]) -> Any:
    """A leaf wrapped by vmaps of levels 1, 2, ..., rewrapped at the given levels."""
    if not isinstance(leaf, Tensor) or not _functorch.is_batchedtensor(leaf):
        return leaf
    value, axis = with_batch_levels(_functorch.get_unwrapped(leaf), levels), _functorch.maybe_get_bdim(leaf)
    return _functorch._add_batch_dim(value, axis, levels[_level(leaf) - 1])


def wrapped_by_active_transform(leaf: Any) -> bool:
    """Whether a leaf is a tensor wrapped by an active transform."""
    return isinstance(leaf, Tensor) and is_wrapped(leaf) and 0 <= _level(leaf) <= _current_level()


def escaped_its_transform(tensor: Tensor) -> bool:
    """Whether a tensor is the wrapper of a transform that has ended, or of one nested inside the current one."""
    return is_wrapped(tensor) and (_level(tensor) == _DEAD or _level(tensor) > _current_level())


class HiddenTensorsRefused(TorchFunctionMode):
    """A context for steps that run below a transform, where using a tensor of that transform would lose its gradient.

    Tensors found by the search in closures are rebound to values of the level at which the steps run. This context
    catches those that the search has missed, or that a step has replaced and finds again when it is recomputed; PyTorch
    would silently use their numbers. The error is raised at the end of the context: inside an operator such as `*`, a
    TypeError means that the operands do not fit, and is replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shape: list[int] | None = None  # of a hidden tensor that was used

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        hidden = [leaf for leaf in flatten((args, kwargs))[0] if _is_hidden(leaf)]
        try:
            result = func(*args, **(kwargs or {}))
        except RuntimeError:  # under vmap, where PyTorch does not expect such a tensor
            self._shape = list(hidden[0].shape) if hidden else self._shape
            raise
        # A function that returns no tensor is a getter, through which no gradient flows.
        if hidden and isinstance(result, Tensor):
            self._shape = list(hidden[0].shape)
        return result

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if self._shape is not None:
            raise StepError(
                f"a step uses a tensor of shape {self._shape} that torch.func differentiates or maps, and that was not "
                "found in what the step closes over, or that it has replaced there, so its gradient would be lost. "
                "Pass it through init or xs, or let the step close over it: closures, partials, attributes, and items "
                "of lists, dicts and sets are searched"
            ) from exception[1]


def _is_hidden(leaf: Any) -> bool:
    is_inside = isinstance(leaf, Tensor) and is_wrapped(leaf) and _level(leaf) > _current_level()
    # The numbers of a constant are right; under vmap they are not those of one example.
    return is_inside and (_current_level() > 0 or requires_grad_somewhere(leaf))


def _level(tensor: Tensor) -> int:
    return int(_functorch.maybe_get_level(tensor))


def _current_level() -> int:
    return _functorch.maybe_current_level() or 0


class HooksRefused(RuntimeError):
    """A function has entered a torch.func transform, which does not run under saved-tensor hooks.

    Its text is that of PyTorch's own error, by which an enclosing segment recognizes it too (`refuses_hooks`).
    """


_transforming: WeakSet[Any] = WeakSet()


def refuses_hooks(error: RuntimeError) -> bool:
    """Whether an error says that a transform does not run under saved-tensor hooks; it has no type of its own."""
    return "support saved tensor hooks" in str(error)


def remember_transforms(fn: Any) -> None:
    """Note that a function enters torch.func transforms."""
    with suppress(TypeError):  # some objects do not support weak references; they are tried each time
        _transforming.add(getattr(fn, "__func__", fn))


def uses_transforms(fn: Any) -> bool:
    """Whether a function is known to enter torch.func transforms."""
    try:
        return bool(_transforming) and getattr(fn, "__func__", fn) in _transforming
    except TypeError:
        return False
