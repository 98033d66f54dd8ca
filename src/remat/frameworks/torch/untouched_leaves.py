"""Leaves behind an input of a loop that turns out to have no gradient: they stay as if nothing had been computed.

The rule: the engine runs all nodes behind the inputs of the loop's node. In a plain loop it would not run those behind
an input that the loss does not depend on: no hooks, no `.grad`. What gradient_flow.py does not know at the call is made
up for in the backward: such an input gets zeros, since hooks of made tensors would be called with None, and a leaf
whose whole gradient is zero calls no hooks, and keeps its `.grad`.

What it can miss: hooks of made tensors, which see zeros, and a gradient that other uses make zero. The cost: nothing
where all inputs have gradients; else a walk of at most 1,000 nodes, where longer graphs are left to None.
"""

from contextvars import ContextVar

from torch import Tensor

from remat.execute.recomputation import variable_set
from remat.frameworks.torch.graph import (
    backward_hooks,
    call_after_backward,
    edges_behind,
    has_hooks,
    is_leaf_node,
    leaf_itself,
    leaf_of,
    post_accumulate_hooks,
    set_backward_hooks,
)
from remat.frameworks.torch.leaves import batched_zeros_like
from remat.pytree import Leaf

__all__ = ["gradient_of_unused", "pulling_back"]

# In the pullback of a range, hooks of leaves are suspended: the loop around it hands their gradients on, or None.
_in_pullback: ContextVar[bool] = ContextVar("in_pullback", default=False)


def pulling_back() -> variable_set[bool]:
    """A block in which a range of a loop is pulled back."""
    return variable_set(_in_pullback, True)


def gradient_of_unused(leaf: Leaf, batch: int | None) -> Tensor | None:
    """What the node of a loop returns for an input that has no gradient; for so many at once with `batch`."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad:
        return None
    if batch is not None or _in_pullback.get():
        return batched_zeros_like(leaf, batch) if has_hooks(leaf) else None
    if leaf.grad_fn is None:
        if has_hooks(leaf):
            _Untouched(leaf_itself(leaf))
        return None
    edges = edges_behind(leaf.grad_fn)
    for node, _ in edges or ():
        if is_leaf_node(node):
            _Untouched(leaf_of(node))
    return None if edges is None else batched_zeros_like(leaf, batch)


class _Untouched:
    """Takes the place of a leaf's hooks until it has got its gradient, or the backward has ended."""

    def __init__(self, leaf: Tensor) -> None:
        before, after = backward_hooks(leaf), post_accumulate_hooks(leaf)
        if not leaf.requires_grad or any(isinstance(hook, _Untouched) for hook in before.values()):
            return  # it was frozen since, or another input has seen to it
        self._leaf, self._grad, self._before, self._after = leaf, leaf.grad, before, after
        self._has_gradient, self._is_restored = False, False
        set_backward_hooks(leaf, {})
        set_backward_hooks(leaf, {}, after=True)
        leaf.register_hook(self)  # type: ignore[no-untyped-call]
        leaf.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
        call_after_backward(self._restore)

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        """The hook for the gradient, before it is added to `.grad`."""
        if gradient is None or not (gradient.is_sparse or gradient.any()):
            return None
        self._has_gradient = True
        for hook in self._before.values():
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient

    def _accumulated(self, leaf: Tensor) -> None:
        self._restore()
        if not self._has_gradient:
            leaf.grad = self._grad
            return
        for hook in self._after.values():
            hook(leaf)

    def _restore(self) -> None:
        if not self._is_restored:
            self._is_restored = True
            set_backward_hooks(self._leaf, self._before)
            set_backward_hooks(self._leaf, self._after, after=True)
