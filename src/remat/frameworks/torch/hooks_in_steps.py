"""Hooks that a step puts on tensors, in second derivatives: linear ones are exact, others are refused there.

The rule: a derivative of the adjoint loop runs each step more than once, and the gradient of a tensor inside of it is
the sum of what these runs give. A hook sees one of the terms at a time. One that only looks (that returns None, or what
it is given) changes nothing, and what a linear one makes of the terms (`g * 0.5`, `g * mask`) adds up to what it makes
of the sum. A clipped sum is no sum of clipped terms. Whether a hook is linear is tried out, on gradients of three
magnitudes. Hooks on the carry must not change it in any way: a term of its gradient comes from what the step before
has saved, which does not know them.

The same holds for backward hooks of modules, of which it is tried out whether they keep multiples.

What it can miss: hooks on nodes (`grad_fn.register_hook`), and hooks that are linear where they are tried out and not
elsewhere. The cost: a TorchFunctionMode while a step runs, some 2 us for an operation, and nine calls for each call of
a hook that changes a gradient, in second derivatives only.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from remat.errors import StepError

__all__ = ["LinearHooksOnly", "linear_module_hook"]

Hook: TypeAlias = Callable[[Tensor], Tensor | None]


class LinearHooksOnly(TorchFunctionMode):
    """A block in which hooks are registered that raise a StepError if they are not linear, or change the carry's."""

    def __init__(self, carry: Sequence[Any] = ()) -> None:
        super().__init__()
        self._carry = {id(leaf) for leaf in carry}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch; `register_hook` with another hook."""
        # Such blocks are inside of one another: in each, the derivative of a derivative.
        if func is Tensor.register_hook and len(args) == 2 and getattr(args[1], "func", None) is not _linear:
            args = (args[0], partial(_linear, args[1], id(args[0]) in self._carry))
        return func(*args, **(kwargs or {}))


def _linear(hook: Hook, on_carry: bool, gradient: Tensor) -> Tensor | None:
    result = hook(gradient)
    if result is None or result is gradient or (not on_carry and _is_linear(hook, gradient)):
        return result
    raise StepError(
        f"a hook that a step puts on {'its carry' if on_carry else 'a tensor'} changes the gradient, of which second "
        f"derivatives would show it a part only{'' if on_carry else ', and is not linear'}. Change it by a "
        "torch.autograd.Function in the step, or differentiate once"
    )


def linear_module_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A backward hook of a module that raises a StepError if it is not linear."""
    return hook if getattr(hook, "func", None) is _linear_in_module else partial(_linear_in_module, hook)


def _linear_in_module(hook: Callable[..., Any], module: Any, *gradients: Any) -> Any:
    result = hook(module, *gradients)
    if result is None:
        return None
    results = [result] if isinstance(result, Tensor) else list(result)
    for factor in (-(2.0**-30), 2.0**30):
        again = hook(module, *([_times(factor, each) for each in row] for row in map(_row, gradients)))
        again = [again] if isinstance(again, Tensor) else again
        for one, other in zip(results, again or [None] * len(results), strict=True):
            if one is not None and (other is None or not torch.allclose(other, factor * one, atol=0)):
                raise StepError(
                    f"a backward hook of {type(module).__name__} changes a gradient, of which second derivatives would "
                    "show it a part only, and is not linear. Change it by a torch.autograd.Function in the step, or "
                    "differentiate once"
                )
    return result


def _row(gradients: Any) -> Sequence[Any]:
    return (gradients,) if isinstance(gradients, Tensor) else gradients


def _times(factor: float, gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach() * factor


def _is_linear(hook: Hook, like: Tensor) -> bool:
    """Whether a hook keeps sums and multiples, of gradients like this one in three magnitudes."""
    limits = torch.finfo(like.dtype)
    places = torch.arange(like.numel(), device=like.device, dtype=torch.float64).reshape(like.shape)
    with torch.no_grad():
        for size in (limits.tiny**0.25, 1.0, limits.max**0.25):
            one, other = ((function(places + 0.5) * size).to(like.dtype) for function in (torch.cos, torch.sin))
            first, second, both = (_result(hook, gradient) for gradient in (one, other, one - 2 * other))
            if not torch.allclose(first - 2 * second, both, rtol=100 * limits.eps, atol=100 * limits.eps * size):
                return False
    return True


def _result(hook: Hook, gradient: Tensor) -> Tensor:
    result = hook(gradient)
    return gradient if result is None else result
