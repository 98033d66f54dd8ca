"""Hooks that a step puts on tensors, in second derivatives: one that changes the gradient is refused there.

The rule: a derivative of the adjoint loop runs each step more than once, and the gradient of a tensor inside of it is
the sum of what these runs give. A hook sees one of the terms at a time, and a clipped sum is no sum of clipped terms.
Hooks that only look (that return None, or what they are given) change nothing.

What it can miss: hooks on nodes (`grad_fn.register_hook`). The cost: a TorchFunctionMode while a step runs, some 2 us
for an operation, in second derivatives only.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from remat.errors import StepError

__all__ = ["ChangingHooksRefused"]


class ChangingHooksRefused(TorchFunctionMode):
    """A block in which hooks are registered that raise a StepError where they change a gradient."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch; `register_hook` with another hook."""
        if func is Tensor.register_hook and len(args) == 2:
            args = (args[0], partial(_only_looking, args[1]))
        return func(*args, **(kwargs or {}))


def _only_looking(hook: Callable[[Tensor], Tensor | None], gradient: Tensor) -> None:
    result = hook(gradient)
    if result is not None and result is not gradient:
        raise StepError(
            "a hook that a step puts on a tensor changes its gradient, of which second derivatives would show it a part"
            " only. Change it by a torch.autograd.Function in the step, or differentiate once"
        )
