"""Makes an input of a loop that turns out to have no gradient look as if nothing had been computed from it.

The rule: the engine runs all nodes behind the inputs of the loop's node. In a plain loop it would not run those behind
an input that the loss does not depend on: no hooks, no `.grad`. What gradient_flow.py does not know at the call is
corrected in the backward. Such an input gets special zeros, recognized by their memory, since hooks of non-leaf tensors
would fail if they were called with None. A node that gets nothing else passes such zeros on, and None to leaves. So a
leaf gets None if only such zeros lead to it, and its hooks do not run. The zeros are -0.0, which changes no sum.

Hooks of a non-leaf tensor do not run either, if the tensor is the input itself or is saved by a node behind it.

What it can miss: hooks of other non-leaf tensors, which see zeros; if they change the sign, these go on as a gradient.
The cost: nothing if all inputs have gradients; otherwise a hook on each of at most 1,000 nodes; inputs with longer
graphs get None. torch.func transforms, whose gradients are never None, need none of this.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from remat.frameworks.torch.internals.functorch import in_transform, is_wrapped
from remat.frameworks.torch.internals.graph import (
    Edge,
    backward_hooks,
    call_after_backward,
    current_backward,
    edges_behind,
    has_hooks,
    has_no_numbers,
    is_leaf_node,
    is_wanted,
    leaf_itself,
    leaf_of,
    post_accumulate_hooks,
    set_backward_hooks,
)
from remat.frameworks.torch.leaves import batched_zeros_like
from remat.frameworks.torch.loops.saved_bytes import saved_tensors_of
from remat.pytree import Leaf

__all__ = ["gradient_of_unused", "without_unused"]


def gradient_of_unused(leaf: Leaf) -> Tensor | None:
    """What the loop's node returns in its backward for an input that has no gradient."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad:
        if isinstance(leaf, Tensor) and not in_transform():
            _suspend_hooks(leaf_itself(leaf))  # it may have been frozen since
        return None
    if in_transform() or is_wrapped(leaf):
        return batched_zeros_like(leaf, None) if backward_hooks(leaf) else None
    if not is_wanted(leaf):
        return None
    if leaf.grad_fn is None:
        _suspend_hooks(leaf_itself(leaf))
        return None
    task = current_backward()
    if task not in _unused:
        _unused[task] = _UnusedNodes(task)
    return _unused[task].zeros_for(leaf)


def is_unused(gradient: Tensor | None) -> bool:
    """Whether a gradient consists of the special zeros of a loop that has not used the tensor."""
    if gradient is None or gradient.layout is not torch.strided or is_wrapped(gradient) or has_no_numbers(gradient):
        return False
    zero = _zeros.get((gradient.dtype, gradient.device))
    return zero is not None and gradient.data_ptr() == zero.data_ptr()


def without_unused(gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients, with None in place of the special zeros of a loop that has not used the tensor."""
    return [None if is_unused(gradient) else gradient for gradient in gradients] if _zeros else gradients


class _UnusedNodes:
    """The nodes behind inputs without a gradient, in one backward."""

    def __init__(self, task: int) -> None:
        self._task = task
        self._handles: dict[Node, Any] = {}
        self._given: set[Edge] = set()  # edges that have zeros already: a sum of two would be in new memory
        call_after_backward(self._end)

    def zeros_for(self, tensor: Tensor) -> Tensor | None:
        """The zeros for an input that has a graph; None if it has zeros already, or if the graph is too long."""
        assert tensor.grad_fn is not None
        edges = edges_behind(tensor.grad_fn)
        if edges is None:
            return None
        # No reference leads from a node to the tensor that it made: one with hooks may be the input, or saved by
        # others.
        made = [tensor]
        for node in {tensor.grad_fn, *(node for node, _ in edges)}:
            if is_leaf_node(node):
                _suspend_hooks(leaf_of(node))
            elif node not in self._handles:
                self._handles[node] = node.register_hook(partial(self._pass_on, node))
                made += saved_tensors_of(node)
        for each in made:
            if each.grad_fn in self._handles:
                _suspend_hooks(each)
        return self._passed_to((tensor.grad_fn, tensor.output_nr), tensor)

    def _pass_on(self, node: Node, gradients: Sequence[Any], incoming: Sequence[Any]) -> tuple[Any, ...] | None:
        """The hook of a node after it has run: if it only got special zeros, it passes on special zeros too."""
        edges = [(node, output) for output in range(len(incoming))]
        if current_backward() != self._task or not all(map(self._is_ours, incoming, edges)):
            return None
        return tuple(
            None if gradient is None else self._passed_to(edge, gradient)
            for edge, gradient in zip(node.next_functions, gradients, strict=True)
        )

    def _passed_to(self, edge: tuple[Node | None, int], like: Tensor) -> Tensor | None:
        node, output = edge
        if node is None or is_leaf_node(node) or (node, output) in self._given:
            return None
        self._given.add((node, output))
        return _zero(like).expand(like.shape)

    def _is_ours(self, gradient: Tensor | None, edge: Edge) -> bool:
        if gradient is None:
            return True
        if edge not in self._given or gradient.layout is not torch.strided:
            return False
        if is_unused(gradient):
            return True
        # A hook on a non-leaf tensor may have returned other zeros, which usually have the same sign.
        return not gradient.is_complex() and bool(((gradient == 0) & torch.signbit(gradient)).all())

    def _end(self) -> None:
        del _unused[self._task]
        for handle in self._handles.values():
            handle.remove()


_unused: dict[int, _UnusedNodes] = {}  # by the id of the backward
_zeros: dict[tuple[torch.dtype, torch.device], Tensor] = {}  # kept for good: an enclosing loop may get one later


def _zero(like: Tensor) -> Tensor:
    key = like.dtype, like.device
    if key in _zeros and not has_no_numbers(like):
        return _zeros[key]
    zero = torch.full((), -0.0, dtype=like.dtype, device=like.device)
    return zero if has_no_numbers(like) else _zeros.setdefault(key, zero)


def _suspend_hooks(leaf: Tensor) -> None:
    """Make the hooks of a leaf or of a non-leaf tensor run only if it gets a gradient in this backward."""
    if has_hooks(leaf):
        _Untouched(leaf)


class _Untouched:
    """Takes the place of a tensor's hooks until it gets its gradient, or the backward ends."""

    def __init__(self, leaf: Tensor) -> None:
        before, after = backward_hooks(leaf), post_accumulate_hooks(leaf)
        if any(isinstance(hook, _Untouched) for hook in before.values()):
            return  # done for another input
        self._leaf, self._before, self._after = leaf, before, after
        self._has_gradient, self._is_restored = False, False
        if leaf.grad_fn is not None:  # the engine calls its hooks with the sum of all gradients
            set_backward_hooks(leaf, {0: self})
        elif leaf.requires_grad:
            set_backward_hooks(leaf, {})
            set_backward_hooks(leaf, {}, after=True)
            leaf.register_hook(self)  # type: ignore[no-untyped-call]
            leaf.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
        else:  # frozen since: the engine calls its hooks, but does not accumulate
            set_backward_hooks(leaf, {0: self})
        call_after_backward(self._restore)

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        """The hook for the gradient, before it is added to `.grad`."""
        if gradient is None or is_unused(gradient):
            return None
        self._has_gradient = True
        # As the engine does: each hook gets the result of the one before.
        for hook in self._before.values():
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient

    def _accumulated(self, leaf: Tensor) -> None:
        self._restore()
        for hook in self._after.values() if self._has_gradient else ():
            hook(leaf)

    def _restore(self) -> None:
        if not self._is_restored:
            self._is_restored = True
            set_backward_hooks(self._leaf, self._before)
            set_backward_hooks(self._leaf, self._after, after=True)
