"""Hooks that a step puts on tensors, in second derivatives: linear ones are exact, others are refused.

The rule: a derivative of the adjoint loop runs each step more than once, and the gradient of a tensor inside the step
is the sum of what these runs give. A hook sees one term at a time. A hook that only observes (returns None, or what it
was given) changes nothing, and the results of a linear hook (`g * 0.5`, `g * mask`) for the terms add up to its result
for the sum. But a clipped sum is not a sum of clipped terms. Whether a hook is linear is tested on gradients of three
magnitudes. Hooks on the carry must not change it at all: one term of its gradient comes from what the previous step has
saved, which does not know the hooks.

The same holds for backward hooks of modules.

What it can miss: hooks on nodes (`grad_fn.register_hook`), and hooks that are linear where they are tested but not
elsewhere. The cost: a TorchFunctionMode while a step runs, some 2 us for each operation, and nine calls for each call
of a hook that changes a gradient, in second derivatives only.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from remat.errors import StepError
from remat.pytree import PyTree, flatten

__all__ = ["LinearHooksOnly", "linear_module_hook"]

Hook: TypeAlias = Callable[[Tensor], Tensor | None]


class LinearHooksOnly(TorchFunctionMode):
    """A context in which registered hooks raise a StepError if they are not linear, or change the carry's gradient."""

    def __init__(self, carry: Sequence[Any] = ()) -> None:
        super().__init__()
        self._carry = {id(leaf) for leaf in carry}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a PyTorch function; `register_hook` with a wrapped hook."""
        # Such contexts are nested, one for each order of derivative, so the hook may be wrapped already.
        if func is Tensor.register_hook and len(args) == 2 and getattr(args[1], "func", None) is not _linear:
            args = (args[0], partial(_linear, args[1], id(args[0]) in self._carry))
        return func(*args, **(kwargs or {}))


def _linear(hook: Hook, on_carry: bool, gradient: Tensor) -> Tensor | None:
    result = hook(gradient)
    if result is None or result is gradient or (not on_carry and _is_linear(hook, gradient)):
        return result
    raise _error(f"a hook that a step puts on {'its carry' if on_carry else 'a tensor'}", is_linear=on_carry)


def linear_module_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A backward hook of a module, wrapped so that it raises a StepError if it is not linear."""
    return hook if getattr(hook, "func", None) is _linear_in_module else partial(_linear_in_module, hook)


def _linear_in_module(hook: Callable[..., Any], module: Any, *gradients: Any) -> Any:
    result = hook(module, *gradients)
    if result is None or _is_linear(lambda *others: hook(module, *others), *gradients):
        return result
    raise _error(f"a backward hook of {type(module).__name__}", is_linear=False)


def _error(who: str, *, is_linear: bool) -> StepError:
    return StepError(
        f"{who} changes the gradient, and second derivatives would show it only a part of that"
        f"{'' if is_linear else '; it is not linear'}. Change it with a torch.autograd.Function in the step, or "
        "differentiate once"
    )


def _is_linear(hook: Callable[..., Any], *gradients: PyTree) -> bool:
    """Whether a hook preserves sums and multiples of gradients like these, in three magnitudes."""
    leaves, tree = flatten(gradients)

    def result(numbers: Sequence[Tensor]) -> list[Tensor]:
        given = tree.unflatten(numbers)
        out = hook(*given)
        return flatten(given[0] if out is None else out)[0]

    def like(leaf: Tensor, function: Callable[[Tensor], Tensor], power: float) -> Tensor:
        places = torch.arange(leaf.numel(), device=leaf.device, dtype=torch.float64).reshape(leaf.shape)
        return (function(places + 0.5) * _size(leaf, power)).to(leaf.dtype)

    with torch.no_grad():
        for power in (-0.25, 0.0, 0.25):
            one, other = ([like(leaf, function, power) for leaf in leaves] for function in (torch.cos, torch.sin))
            first, second, both = (
                result(one),
                result(other),
                result([a - 2 * b for a, b in zip(one, other, strict=True)]),
            )
            if not len(first) == len(second) == len(both):
                return False
            for a, b, c in zip(first, second, both, strict=True):
                tolerance = 100 * torch.finfo(c.dtype).eps
                if not torch.allclose(a - 2 * b, c, rtol=tolerance, atol=tolerance * _size(c, power)):
                    return False
    return True


def _size(leaf: Tensor, power: float) -> float:
    limits = torch.finfo(leaf.dtype)
    return float(limits.tiny**-power if power < 0 else limits.max**power)
