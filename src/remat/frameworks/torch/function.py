"""Loops under autograd: one autograd Function for all, from flat leaves to tensors.

In: a `TorchLoopCall` (the step and the options of the call) and the leaves of init, xs and captured tensors. Out: the
last carry and the outputs, which autograd differentiates: the first sweep runs in the forward, the reverse sweep in the
backward. That sweep is a Function too, so that transforms of torch.func apply to it, and so that it has a derivative
(`second_order.py`).
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from remat.errors import StepError
from remat.execute.determinism import DeterminismCheck
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.backend import TorchBackend
from remat.frameworks.torch.device_determinism import DeviceDeterminismCheck
from remat.frameworks.torch.leaves import spec_of
from remat.frameworks.torch.loop_outputs import LoopOutputs, clone_aliases
from remat.frameworks.torch.stored_graphs import StoredGraphs
from remat.frameworks.torch.tape import FirstStep
from remat.loops.loop_call import LoopCall
from remat.loops.stacked_values import Inputs, Outputs
from remat.loops.step_runner import StepRunner
from remat.measuring import StepCost

MOST_NUMBERS = 128  # of fingerprints in a first sweep, which is interrupted for each of them

__all__ = ["LoopBackward", "LoopFunction", "TorchLoopCall", "as_truth_value", "run"]


@dataclass
class TorchLoopCall(LoopCall[TorchBackend]):
    """One call of a loop that autograd differentiates."""

    first_step: FirstStep | None = None  # recorded by the probe, until the first run takes it
    specs: list[Any] = field(default_factory=list)  # of the first carry
    results: LoopOutputs | None = None
    stored: StoredGraphs | None = None  # what steps have stored in the user's containers
    batched: "TorchLoopCall | None" = None  # this call under torch.func.vmap

    def new_backend(self, leaves: Sequence[Any], steps: int) -> tuple[TorchBackend, Any]:
        """A backend for that many steps, and the first carry, detached."""
        init, xs, _ = self.split([leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        self.specs = specs = [spec_of(leaf, name) for leaf, name in zip(init, self.carry.paths("carry"), strict=True)]
        runner = StepRunner(leaf_ops, self.carry, specs, Inputs(xs, self.xs), Outputs(leaf_ops, steps, self.rows))
        # Captured tensors with a graph of their own are replaced by detached ones: the backward of every range would
        # otherwise go through that graph, which the caller's backward goes through anyway.
        pairs = zip(self.split(leaves)[2], self.step.is_leaf, strict=True)
        backend = TorchBackend(
            self.step, runner, [t if is_leaf else t.detach().requires_grad_() for t, is_leaf in pairs]
        )
        backend.steps = steps
        return backend, self.carry.unflatten(init)

    def new_run(self, leaves: Sequence[Any], determinism: DeterminismCheck | None) -> tuple[TorchBackend, Any]:
        """A backend, and an interpreter at the initial state; the first run takes the step that the probe recorded."""
        backend, interpreter = super().new_run(leaves, determinism)
        backend.first_step, self.first_step = self.first_step, None
        if backend.first_step is not None:  # later steps of its range use the same roots for captured tensors
            backend.in_first_run, tape = True, backend.first_step.tape
            backend.captured[: len(tape.captured)] = tape.captured
            tape.captured = backend.captured
        return backend, interpreter

    def new_determinism_check(self) -> DeterminismCheck:
        """On the CPU states are compared at once, on other devices at the end, to synchronize once."""
        devices = {spec.device.type for spec in self.specs if spec.device is not None}
        if devices <= {"cpu"}:
            return DeterminismCheck(self.steps, MOST_NUMBERS, kept_only=self.request.runs_sections)
        return DeviceDeterminismCheck(self.steps)

    def evaluate_cond(self, backend: TorchBackend, carry: Any) -> bool:
        """Whether the condition holds for a carry."""
        assert self.cond is not None
        with self.step.autocast.active(grad=False), self.step.rebind(backend.captured):
            return as_truth_value(self.cond(carry))

    def measured(self, leaves: Sequence[Any]) -> StepCost:
        """What a step costs."""
        from remat.frameworks.torch.measure import measured

        return measured(self, leaves)

    def reverse(self, leaves: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients of all leaves, None where there is none. A second reverse sweep runs forward again first."""
        with self.at_turn(leaves) as (backend, interpreter):
            assert self.results is not None
            carry, outputs = self.results.expand_cotangents(cotangents)
            backend.steps = self.steps
            with nullcontext() if self.stored is None else self.stored.pulling_back():
                gradients = interpreter.reverse(backend.new_gradients(carry, outputs))
            return [*gradients.carry, *gradients.xs, *gradients.captured]


def as_truth_value(answer: Any) -> bool:
    """The answer of a condition as a bool; a StepError if it is not one truth value."""
    count = answer.numel() if isinstance(answer, Tensor) else int(answer is not None)
    if count != 1:
        what = "None" if answer is None else f"{count} values"
        raise StepError(f"cond must return one truth value, and returned {what}; .all() and .any() make one of many")
    return bool(answer)


class LoopFunction(torch.autograd.Function):
    """A loop: leaves go in, tensors come out."""

    @staticmethod
    def forward(call: TorchLoopCall, *leaves: Any) -> tuple[Tensor, ...]:
        """Run the first sweep."""
        backend, interpreter = call.first_sweep(leaves)
        if interpreter.determinism is not None and not call.step.under_functorch:
            backend.remember_outputs()
        call.results, tensors = LoopOutputs.of(backend, interpreter.take(), leaves)
        return tensors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the leaves, from which a second reverse sweep would start; mark results that are not active."""
        call, *leaves = inputs
        ctx.call = call
        _save(ctx, leaves)
        pairs = zip(output, call.results.tensor_activity(), strict=True)
        ctx.mark_non_differentiable(*[tensor for tensor, active in pairs if not active])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Run the reverse sweep, as another Function."""
        leaves = _saved(ctx)
        return None, *LoopBackward.apply(ctx.call, len(leaves), *leaves, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Raise a StepError: there is no forward mode."""
        raise StepError(
            "loops have no forward mode on PyTorch: use torch.func.grad or vjp, or write the loop plainly for jvp"
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: TorchLoopCall, *leaves: Any) -> Any:
        """Run the loop for a whole batch."""
        from remat.frameworks.torch.vmap import vmap_forward

        return vmap_forward(info, dims[1:], call, leaves)


class LoopBackward(torch.autograd.Function):
    """The reverse sweep of a loop: leaves and cotangents go in, gradients of the leaves come out."""

    @staticmethod
    def forward(call: TorchLoopCall, count: int, *args: Any) -> tuple[Any, ...]:
        """Run the reverse sweep."""
        return clone_aliases(call.reverse(args[:count], args[count:]), args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save leaves and cotangents, which the next derivative depends on."""
        ctx.call, ctx.count, *args = inputs
        _save(ctx, args)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Differentiate the gradient."""
        from remat.frameworks.torch.second_order import double_backward

        args = _saved(ctx)
        return None, None, *double_backward(ctx.call, args[: ctx.count], args[ctx.count :], cotangents)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: TorchLoopCall, count: int, *args: Any) -> Any:
        """Run the reverse sweep of a whole batch."""
        from remat.frameworks.torch.vmap import vmap_backward

        return vmap_backward(info, dims[2:], call, args[:count], args[count:])


def _save(ctx: Any, args: Sequence[Any]) -> None:
    """Save tensors as autograd wants it, and Python numbers on the context."""
    ctx.set_materialize_grads(False)
    ctx.numbers = [None if isinstance(arg, Tensor) else arg for arg in args]
    ctx.save_for_backward(*[arg if isinstance(arg, Tensor) else None for arg in args])


def _saved(ctx: Any) -> list[Any]:
    """The arguments of `_save`."""
    return [number if tensor is None else tensor for number, tensor in zip(ctx.numbers, ctx.saved_tensors, strict=True)]


def run(call: TorchLoopCall, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The last carry and the outputs of a loop that has active leaves."""
    tensors = LoopFunction.apply(call, *leaves)  # type: ignore[no-untyped-call]
    results = call.results
    assert results is not None
    carry, outputs = results.with_arrays(tensors)
    return call.carry.unflatten(carry), results.outputs and results.outputs.unflatten(outputs)
