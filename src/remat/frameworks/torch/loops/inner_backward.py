"""Steps that call `backward`, which adds to `.grad` of parameters.

The rule: such a step always runs with grad, since it may ask whether a tensor requires a gradient. While it is measured
or recomputed it adds nothing to `.grad`. It must not differentiate through its carry, where its graph begins: that is
an error, unless one tape has all steps.

What it can miss: `backward` that a library calls; only code of the user's is searched for the name. The cost: nothing
for other steps.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from remat.errors import StepError
from remat.execute.recomputation import is_recomputing
from remat.frameworks.torch.internals.graph import gradients_set_aside
from remat.pytree import Leaf, flatten

__all__ = ["InnerBackward"]

Step: TypeAlias = Callable[[Any, Any], Any]


class InnerBackward:
    """What a step that calls `backward` leaves in `.grad`: as much as it leaves there in a plain loop, or an error.

    `leaves` are those that the step reaches; `init` is the first carry.
    """

    def __init__(self, leaves: Iterable[Tensor], init: Iterable[Leaf]) -> None:
        self._leaves = [leaf for leaf in leaves if leaf.is_leaf]
        # Without gradients of init, nothing is lost if the graph begins at the first step.
        self._is_exempt = not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in init)
        self._roots: Sequence[Tensor] = ()  # where the graph of the current range begins

    def wrap(self, step: Step) -> Step:
        """The step, which raises a StepError if its `backward` passes through the carry that its graph begins with."""

        def run(carry: Any, x: Any) -> Any:
            if is_recomputing():
                with gradients_set_aside(self._leaves):
                    return step(carry, x)
            leaves = flatten(carry)[0]
            if any(isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf for leaf in leaves):
                roots = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_leaf]
                self._roots, self._is_exempt = ([] if self._is_exempt else roots), False
            out = step(carry, x)
            if any(root.grad is not None for root in self._roots):
                raise StepError(
                    "it calls backward() on a loss that depends on earlier steps: that gradient would end where the "
                    "graph of this step begins. Return the loss as y and call backward() after the loop; to truncate "
                    "the gradient, call the loop once for each window of steps, and detach the carry between them"
                )
            return out

        return run
