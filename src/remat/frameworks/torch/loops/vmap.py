"""Loops under torch.func.vmap: one loop over the whole batch, whose step is `vmap` of the user's step.

In: leaves with or without a batch axis. Out: results with one. Carry and captured tensors have it as axis 0, inputs and
outputs as axis 1, after the axis of steps. A leaf without a batch axis is expanded, as a view: each example has its own
gradient. Integer inputs have no gradient and stay as they are, so that a step can ask for their numbers, and so do
stacks of Python numbers that steps return.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.internals.functorch import level_above
from remat.frameworks.torch.loops.analyzed_step import AnalyzedStep
from remat.frameworks.torch.loops.function import LoopBackward, LoopFunction
from remat.frameworks.torch.loops.loop_outputs import LoopOutputs
from remat.frameworks.torch.loops.torch_loop_call import TorchLoopCall
from remat.loops.step_runner import unpack_output
from remat.pytree import PyTree, TreeDef, flatten

__all__ = ["vmap_backward", "vmap_forward"]


def vmap_forward(info: Any, dims: Sequence[Any], call: TorchLoopCall, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The results of a loop for a whole batch, and their batch axes."""
    batched = _batched(call, info, dims, leaves)
    tensors = LoopFunction.apply(batched, None, *_with_axes(call, info, dims, leaves))
    return tensors, tuple(_axes(call.adopt(batched)))


def vmap_backward(
    info: Any,
    dims: Sequence[Any],
    call: TorchLoopCall,
    batch: int | None,
    leaves: Sequence[Any],
    cotangents: Sequence[Any],
) -> tuple[Any, Any]:
    """The gradients of a loop's leaves for a whole batch, and their batch axes."""
    count, size = len(leaves), info.batch_size
    if all(dim is None for dim in dims[:count]):
        bars = [_with_axis(bar, dim, 0, size) for bar, dim in zip(cotangents, dims[count:], strict=True)]
        return _pull_back_many(call, size, batch, leaves, bars)
    assert call.results is not None
    assert call.batched is not None
    first = int(batch is not None)  # the axis of a batch of cotangents stays first
    bars = [
        _with_axis(bar, dim, first + (axis or 0), size)
        for bar, dim, axis in zip(cotangents, dims[count:], _axes(call.results), strict=True)
    ]
    batched_leaves = _with_axes(call, info, dims[:count], leaves)
    gradients = LoopBackward.apply(call.batched, batch, count, count, *batched_leaves, *bars)
    axes_of_gradients = [None if bar is None else first + int(_is_input(call, k)) for k, bar in enumerate(gradients)]
    return gradients, tuple(axes_of_gradients)


def _pull_back_many(
    call: TorchLoopCall, size: int, batch: int | None, leaves: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The gradients for `size` cotangents, in axis 0 before that of an inner batch; steps run once, for one example.

    This is what happens when jacrev differentiates a plain loop: it maps the backward, but not what ran before.
    """
    count = len(leaves)
    if batch is None:
        gradients = LoopBackward.apply(call, size, count, count, *leaves, *cotangents)
    else:
        # Both are batches of cotangents: for the steps they are one.
        bars = [None if bar is None else bar.flatten(0, 1) for bar in cotangents]
        gradients = LoopBackward.apply(call, size * batch, count, count, *leaves, *bars)
        gradients = [None if bar is None else bar.unflatten(0, (size, batch)) for bar in gradients]
    return tuple(gradients), tuple(None if gradient is None else 0 for gradient in gradients)


def _axes(results: LoopOutputs) -> list[int | None]:
    """The batch axes of the tensors among the results."""
    axes = [*[0] * results.carry_size, *(None if spec.weak else 1 for spec in results.output_specs)]
    return [axis for axis, number in zip(axes, results.numbers, strict=True) if number is None]


def _is_input(call: TorchLoopCall, k: int) -> bool:
    """Whether leaf k is one of the inputs `xs`, whose axis 0 is the steps."""
    return call.sizes[0] <= k < call.sizes[0] + call.sizes[1]


def _is_mapped(call: TorchLoopCall, k: int, leaf: Any, dim: int | None) -> bool:
    """Whether leaf k has a batch axis, or gets one."""
    return isinstance(leaf, Tensor) and (dim is not None or not _is_input(call, k) or leaf_ops.is_differentiable(leaf))


def _with_axes(call: TorchLoopCall, info: Any, dims: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    return [
        _with_axis(leaf, dim, int(_is_input(call, k)), info.batch_size) if _is_mapped(call, k, leaf, dim) else leaf
        for k, (leaf, dim) in enumerate(zip(leaves, dims, strict=True))
    ]


def _with_axis(leaf: Any, dim: int | None, axis: int, size: int) -> Any:
    """A tensor whose batch axis is `axis`: moved from `dim`, or added if that is None."""
    if not isinstance(leaf, Tensor):
        return leaf
    if dim is not None:
        return leaf.movedim(dim, axis)
    leaf = leaf.unsqueeze(axis)
    return leaf.expand(*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])


def _batched(call: TorchLoopCall, info: Any, dims: Sequence[Any], leaves: Sequence[Any]) -> TorchLoopCall:
    """The call of the loop over a whole batch."""
    mapped = [_is_mapped(call, k, leaf, dim) for k, (leaf, dim) in enumerate(zip(leaves, dims, strict=True))]
    step = BatchedStep(
        call.step.closure,
        call.step.autocast,
        call.step.replayable_states,
        call.step.contents,
        call.step.left,
        under_functorch=True,
        inner=call.step,
        randomness=info.randomness,
        trees=(call.carry, call.xs),
        mapped=frozenset(call.capture_ids),
        mapped_xs=call.split(mapped)[1],
        # The innermost vmap reaches a call first, so each later one is outside of those before.
        levels=(level_above(), *call.step.levels),
    )
    return replace(call, step=step, pending=None, results=None, replay=None, batched=None)


@dataclass(frozen=True)
class BatchedStep(AnalyzedStep):
    """A step for all examples of a batch."""

    inner: AnalyzedStep | None = None  # the step for one example
    randomness: str = "error"  # as in torch.func.vmap
    trees: tuple[TreeDef, TreeDef] = (TreeDef(), TreeDef())  # of carry and x
    mapped: frozenset[int] = frozenset()  # indices of the captured tensors that have a batch axis
    mapped_xs: Sequence[bool] = ()  # by leaf of x: whether it has one

    @contextmanager
    def rebind(self, values: Mapping[int, Tensor]) -> Iterator[Callable[..., Any]]:
        """A context that yields the step with these captured tensors; those wrapped by transforms have a batch axis."""
        yield lambda carry, x: self._run(values, carry, x)

    def holds(self, cond: Callable[[PyTree], object], values: Mapping[int, Tensor], carry: PyTree) -> bool:
        """Whether a condition holds for a carry; it must be the same for all examples."""
        assert self.inner is not None
        inner, found = self.inner, list[bool]()

        def one_example(bindings: Mapping[int, Tensor], leaves: list[Any]) -> list[Any]:
            # Stored aside: vmap returns only tensors, and an answer may be a number.
            found.append(inner.holds(cond, bindings, self.trees[0].unflatten(leaves)))
            return []

        leaves = self.trees[0].flatten_like(carry, "carry")
        self._map(one_example, values, leaves, [True] * len(leaves))
        return found[0]

    def _run(self, values: Mapping[int, Tensor], carry: Any, x: Any) -> Any:
        assert self.inner is not None
        inner, size = self.inner, self.trees[0].size
        static: list[Any] = []  # structure and Python numbers of the results, which vmap cannot return

        def one_example(bindings: Mapping[int, Tensor], leaves: list[Any]) -> list[Any]:
            with inner.rebind(bindings) as step:
                out = step(self.trees[0].unflatten(leaves[:size]), self.trees[1].unflatten(leaves[size:]))
                outs, tree = flatten(unpack_output(leaf_ops, out, 0))
            static[:] = [tree, [None if isinstance(out, Tensor) else out for out in outs]]
            return [out for out in outs if isinstance(out, Tensor)]

        leaves = [*self.trees[0].flatten_like(carry, "carry"), *self.trees[1].flatten_like(x, "x")]
        batched = iter(self._map(one_example, values, leaves, [*[True] * size, *self.mapped_xs]))
        tree, numbers = static
        return tree.unflatten([next(batched) if number is None else number for number in numbers])

    def _map(
        self,
        one_example: Callable[[Mapping[int, Tensor], list[Any]], list[Any]],
        values: Mapping[int, Tensor],
        leaves: list[Any],
        mapped_leaves: Sequence[bool],
    ) -> list[Any]:
        """Map a function of captured tensors and leaves over the batch."""
        captured = [k for k in values if k in self.mapped]
        every = [*(values[k] for k in captured), *leaves]
        are_mapped = [*[True] * len(captured), *mapped_leaves]
        are_mapped = [isinstance(leaf, Tensor) and on for leaf, on in zip(every, are_mapped, strict=True)]

        def of_tensors(*tensors: Tensor) -> list[Any]:
            rest = iter(tensors)
            filled = [next(rest) if on else leaf for leaf, on in zip(every, are_mapped, strict=True)]
            return one_example({**values, **dict(zip(captured, filled, strict=False))}, filled[len(captured) :])

        tensors = [leaf for leaf, on in zip(every, are_mapped, strict=True) if on]
        return torch.func.vmap(of_tensors, randomness=self.randomness)(*tensors)
