"""Loops under torch.func.vmap: one loop over the whole batch, whose step is `vmap` of the user's step.

In: leaves with or without a batch axis. Out: results with one. Carry and captured tensors have it as axis 0, inputs and
outputs as axis 1, after the axis of steps. A leaf without a batch axis is expanded, as a view.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from remat.errors import StepError
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.analyzed_step import AnalyzedStep
from remat.frameworks.torch.function import LoopBackward, LoopFunction, TorchLoopCall
from remat.loops.step_runner import unpack_output
from remat.pytree import TreeDef, flatten

__all__ = ["vmap_backward", "vmap_forward"]


def vmap_forward(info: Any, dims: Sequence[Any], call: TorchLoopCall, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The results of a loop for a whole batch, and their batch axes."""
    if call.cond is not None:
        raise StepError("a while_loop cannot be mapped: its examples may take different numbers of steps; use scan")
    batched = _batched(call, info)
    tensors = LoopFunction.apply(batched, None, *_with_axes(call, info, dims, leaves))  # type: ignore[no-untyped-call]
    results = call.adopt(batched)
    axes = [int(k >= results.carry_size) for k, number in enumerate(results.numbers) if number is None]
    return tensors, tuple(axes)


def vmap_backward(
    info: Any, dims: Sequence[Any], call: TorchLoopCall, leaves: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The gradients of a loop's leaves for a whole batch, and their batch axes."""
    assert call.results is not None
    # Without one, only the cotangents have a batch axis.
    batched = call.batched or replace(_batched(call, info), results=call.results)
    axes = iter([int(k >= call.results.carry_size) for k, number in enumerate(call.results.numbers) if number is None])
    batched_cotangents = [
        _with_axis(bar, dim, next(axes), info.batch_size)
        for bar, dim in zip(cotangents, dims[len(leaves) :], strict=True)
    ]
    batched_leaves = _with_axes(call, info, dims[: len(leaves)], leaves)
    gradients = LoopBackward.apply(batched, len(leaves), *batched_leaves, *batched_cotangents)  # type: ignore[no-untyped-call]
    gradient_axes = [None if gradient is None else int(_is_input(call, k)) for k, gradient in enumerate(gradients)]
    return gradients, tuple(gradient_axes)


def _is_input(call: TorchLoopCall, k: int) -> bool:
    """Whether leaf k is one of the inputs `xs`, whose axis 0 are the steps."""
    return call.sizes[0] <= k < call.sizes[0] + call.sizes[1]


def _with_axes(call: TorchLoopCall, info: Any, dims: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    pairs = enumerate(zip(leaves, dims, strict=True))
    return [_with_axis(leaf, dim, int(_is_input(call, k)), info.batch_size) for k, (leaf, dim) in pairs]


def _with_axis(leaf: Any, dim: int | None, axis: int, size: int) -> Any:
    """A tensor whose batch axis is `axis`: moved from `dim`, or added if that is None."""
    if not isinstance(leaf, Tensor):
        return leaf
    if dim is not None:
        return leaf.movedim(dim, axis)
    leaf = leaf.unsqueeze(axis)
    return leaf.expand(*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])


def _batched(call: TorchLoopCall, info: Any) -> TorchLoopCall:
    step = BatchedStep(
        call.step.closure,
        call.step.autocast,
        call.step.replayable_states,
        call.step.contents,
        call.step.left_behind,
        under_functorch=True,
        inner=call.step,
        randomness=info.randomness,
        trees=(call.carry, call.xs),
    )
    return replace(call, step=step, pending=None, results=None, replay=None, batched=None)


@dataclass(frozen=True)
class BatchedStep(AnalyzedStep):
    """A step for all examples of a batch."""

    inner: AnalyzedStep | None = None  # the step for one example
    randomness: str = "error"  # as in torch.func.vmap
    trees: tuple[TreeDef, TreeDef] = (TreeDef(), TreeDef())  # of carry and x

    @contextmanager
    def rebind(self, values: Mapping[int, Tensor]) -> Iterator[Callable[..., Any]]:
        """The step with these as its captured tensors, each with a batch axis."""
        yield lambda carry, x: self._run(values, carry, x)

    def _run(self, bindings: Mapping[int, Tensor], carry: Any, x: Any) -> Any:
        assert self.inner is not None
        inner, captured = self.inner, list(bindings.values())
        leaves = [*captured, *self.trees[0].flatten_like(carry, "carry"), *self.trees[1].flatten_like(x, "x")]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        static: list[Any] = []  # structure and Python numbers of the results, which vmap cannot return

        def one_example(*values: Any) -> list[Any]:
            rest = iter(values)
            filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            a, b = len(captured), len(captured) + self.trees[0].size
            with inner.rebind(dict(zip(bindings, filled[:a], strict=True))) as step:
                after, y = unpack_output(
                    leaf_ops, step(self.trees[0].unflatten(filled[a:b]), self.trees[1].unflatten(filled[b:])), 0
                )
            outs, tree = flatten((after, y))
            static[:] = [tree, [None if isinstance(out, Tensor) else out for out in outs]]
            return [out for out in outs if isinstance(out, Tensor)]

        batched = iter(torch.func.vmap(one_example, randomness=self.randomness)(*tensors))
        tree, numbers = static
        return tree.unflatten([next(batched) if number is None else number for number in numbers])
