"""Loops under autograd: one autograd Function for a whole loop, from flat leaves to tensors.

In: a `TorchLoopCall` (the step and the options of the call) and the leaves of init, xs and captured tensors. Out: the
last carry and the outputs, which autograd differentiates: the first sweep runs in the forward, the reverse sweep in the
backward. That sweep is a Function too, so that torch.func transforms apply to it, and so that it has a derivative
(`second_order.py`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from remat.errors import StepError
from remat.execute.state_replay import preserved_state
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.internals.batched_backward import for_whole_batch, is_batched, one_by_one
from remat.frameworks.torch.internals.functorch import in_transform
from remat.frameworks.torch.internals.graph import is_wanted
from remat.frameworks.torch.loops.loop_outputs import clone_aliases
from remat.frameworks.torch.loops.torch_loop_call import TorchLoopCall
from remat.frameworks.torch.loops.untouched_leaves import gradient_of_unused, without_unused
from remat.pytree import Leaf, PyTree

__all__ = ["LoopBackward", "LoopFunction", "run"]


class LoopFunction(torch.autograd.Function):
    """A loop: leaves go in, tensors come out."""

    @classmethod
    def apply(cls, call: TorchLoopCall, swept: list[Tensor] | None, *leaves: Any) -> Any:
        """Attach the graph to the tensors of the first sweep; if it has not run yet, run it below all transforms."""
        if swept is None and not in_transform():
            swept = list(call.sweep_below(leaves))
            leaves = (*leaves, *call.unwrapped)
        return super().apply(call, swept, *leaves)  # type: ignore[no-untyped-call]

    @staticmethod
    def forward(call: TorchLoopCall, swept: list[Tensor], *leaves: Any) -> tuple[Tensor, ...]:
        """The tensors of the first sweep, which are taken out of the list `swept`."""
        tensors = tuple(swept)
        swept.clear()  # the caller's frame must not keep results alive
        return tensors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the leaves, from which a second reverse sweep would start, and mark inactive results."""
        ctx.call, _, *leaves = inputs
        call = ctx.call
        _save(ctx, leaves)
        pairs = zip(output, call.results.tensor_activity(), strict=True)
        ctx.mark_non_differentiable(*[tensor for tensor, active in pairs if not active])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Run the reverse sweep, as another Function."""
        leaves = _saved(ctx)
        if any(map(is_batched, cotangents)):
            every = len(leaves)
            return (
                None,
                None,
                *for_whole_batch(
                    lambda bars, size: LoopBackward.apply(ctx.call, size, every, every, *leaves, *bars), cotangents
                ),
            )
        bars = without_unused(cotangents)
        if all(bar is None for bar in bars) and any(bar is not None for bar in cotangents):
            # Only special zeros came in: running the steps would run their hooks. What is behind them is unused too,
            # and gets zeros.
            pairs = zip(leaves, ctx.needs_input_grad[2:], strict=True)
            return None, None, *(leaf_ops.batched_zeros_like(leaf, None) if needed else None for leaf, needed in pairs)
        pairs = zip(leaves, LoopBackward.apply(ctx.call, None, len(leaves), len(leaves), *leaves, *bars), strict=True)
        return None, None, *(gradient_of_unused(leaf) if gradient is None else gradient for leaf, gradient in pairs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Raise a StepError, since there is no forward mode."""
        raise StepError(
            "loops have no forward mode on PyTorch: use torch.func.grad or vjp, or write the loop plainly for jvp"
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: TorchLoopCall, swept: None, *leaves: Any) -> Any:
        """Run the loop for a whole batch."""
        return _vmap_rules().vmap_forward(info, dims[2:], call, leaves)


class LoopBackward(torch.autograd.Function):
    """The reverse sweep of a loop: leaves and cotangents go in, gradients of the leaves come out.

    With `batch` there are that many cotangents and gradients, in axis 0, for transforms such as jacrev that map only
    these.
    """

    @classmethod
    def apply(cls, call: TorchLoopCall, batch: int | None, asked: int, count: int, *args: Any) -> Any:
        """The gradients of the first `asked` of `count` leaves, which come before the cotangents."""
        leaves, cotangents = args[:count], args[count:]
        if not in_transform() and count < sum(call.sizes) + len(call.capture_ids):
            leaves = (*leaves, *call.unwrapped)  # the gradients depend on these too
        gradients = super().apply(call, batch, asked, len(leaves), *leaves, *cotangents)  # type: ignore[no-untyped-call]
        return gradients[:asked]

    @staticmethod
    def forward(call: TorchLoopCall, batch: int | None, asked: int, count: int, *args: Any) -> tuple[Any, ...]:
        """Run the reverse sweep."""
        return clone_aliases(call.reverse(args[:count], asked, args[count:], batch), args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save leaves and cotangents, which the next derivative depends on."""
        ctx.call, ctx.batch, _, ctx.count, *args = inputs
        # A leaf that was not asked for has no gradient either, but may still be used.
        ctx.unused = [gradient is None and is_wanted(leaf) for gradient, leaf in zip(output, args, strict=False)]
        _save(ctx, args)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Differentiate the gradient."""
        args = _saved(ctx)
        if any(map(is_batched, cotangents)):
            return None, None, None, None, *one_by_one(partial(_differentiate, ctx, args), cotangents)
        gradients, leaves = _differentiate(ctx, args, cotangents), args[: ctx.count]
        # The adjoint loop has zeros where steps cut the graph; a leaf behind it has no second derivative either.
        for k, leaf in enumerate(leaves):
            if ctx.unused[k] and gradients[k] is not None and not in_transform() and not gradients[k].any():
                gradients[k] = gradient_of_unused(leaf)
        return None, None, None, None, *gradients

    @staticmethod
    def vmap(info: Any, dims: Any, call: TorchLoopCall, batch: int | None, asked: int, count: int, *args: Any) -> Any:
        """Run the reverse sweep of a whole batch."""
        return _vmap_rules().vmap_backward(info, dims[4:], call, batch, args[:count], args[count:])


def _differentiate(ctx: Any, args: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """The gradients of the leaves and cotangents that are the arguments of a LoopBackward."""
    from remat.frameworks.torch.loops.second_order import double_backward

    call, leaves = ctx.call, args[: ctx.count]
    with preserved_state(call.step.replayable_states, call.initial_states), call.as_not_frozen(leaves):
        return double_backward(call, leaves, args[ctx.count :], cotangents, ctx.batch)  # its loops run the steps again


def _vmap_rules() -> Any:
    """The module with the batching rules for loops, which most programs do not need."""
    from remat.frameworks.torch.loops import vmap

    return vmap


def _save(ctx: Any, args: Sequence[Any]) -> None:
    """Save tensors through autograd, and Python numbers on the context."""
    ctx.set_materialize_grads(False)
    ctx.numbers = [None if isinstance(arg, Tensor) else arg for arg in args]
    ctx.save_for_backward(*[arg if isinstance(arg, Tensor) else None for arg in args])


def _saved(ctx: Any) -> list[Any]:
    """The arguments of `_save`."""
    return [number if tensor is None else tensor for number, tensor in zip(ctx.numbers, ctx.saved_tensors, strict=True)]


def run(call: TorchLoopCall, leaves: Sequence[Leaf], swept: list[Tensor] | None) -> tuple[PyTree, PyTree]:
    """The last carry and the outputs of a loop with active leaves; `swept` are the tensors of its first sweep."""
    tensors = LoopFunction.apply(call, swept, *leaves)
    return call.unflatten_results(tensors)
