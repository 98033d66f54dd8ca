"""Loops under autograd: one flat function for all, with plain leaves going in and coming out.

In: a step, values, what is asked. Out: the carry and the outputs, which autograd differentiates: the first sweep runs
when the function is called, the reverse sweep when its cotangent comes. That sweep is a function of its own, so that
transforms of torch.func reach it and its derivative can be asked for (`derived.py`).
"""

from collections.abc import Sequence
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
from remat.frameworks.torch.tape import FirstStep
from remat.loops.loop_call import LoopCall
from remat.loops.stacked_values import Inputs, Outputs
from remat.loops.step_runner import StepRunner
from remat.measuring import StepCost

MOST_NUMBERS = 128  # of summaries; a first sweep stops for each of them

__all__ = ["LoopBackward", "LoopFunction", "TorchLoopCall", "as_truth_value", "run"]


@dataclass
class TorchLoopCall(LoopCall[TorchBackend]):
    """One call of a loop on tensors."""

    first_step: FirstStep | None = None
    specs: list[Any] = field(default_factory=list)  # of the first carry
    results: LoopOutputs | None = None
    batched: "TorchLoopCall | None" = None  # the same under torch.func.vmap

    def new_backend(self, leaves: Sequence[Any], steps: int) -> tuple[TorchBackend, Any]:
        """Verbs for so many steps, and the first carry, outside of any graph."""
        init, xs, _ = self.split([leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        self.specs = specs = [spec_of(leaf, name) for leaf, name in zip(init, self.carry.paths("carry"), strict=True)]
        body = StepRunner(leaf_ops, self.carry, specs, Inputs(xs, self.xs), Outputs(leaf_ops, steps, self.rows))
        # A captured tensor that something else made is replaced by one that begins a graph: what is behind it is not
        # this loop's, and would be gone through again from every range.
        pairs = zip(self.split(leaves)[2], self.step.is_leaf, strict=True)
        backend = TorchBackend(self.step, body, [t if is_leaf else t.detach().requires_grad_() for t, is_leaf in pairs])
        backend.steps = steps
        backend.counting_bytes = self.request.call is not None
        if (
            self.first_step is None
            and self.request.memory is not None
            and self.request.memory.device.capacity is not None
        ):
            backend.counting_bytes = True  # the first step, by which a measured one is known again
        return backend, self.carry.unflatten(init)

    def new_run(self, leaves: Sequence[Any], determinism: DeterminismCheck | None) -> tuple[TorchBackend, Any]:
        """Verbs, and a run at the initial state; the first step has been recorded if this is the first run."""
        backend, run = super().new_run(leaves, determinism)
        backend.first_step, self.first_step = self.first_step, None
        if backend.first_step is not None:  # later steps of its range use the same tensors
            backend.first, tape = True, backend.first_step.tape
            backend.captured[: len(tape.captured)] = tape.captured
            tape.captured = backend.captured
        return backend, run

    def new_determinism_check(self) -> DeterminismCheck:
        """On a device that runs on its own, the comparison waits for the end."""
        devices = {spec.device.type for spec in self.specs if spec.device is not None}
        return DeterminismCheck(self.steps, MOST_NUMBERS) if devices <= {"cpu"} else DeviceDeterminismCheck(self.steps)

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
        with self.at_turn(leaves) as (backend, run):
            assert self.results is not None
            carry, outputs = self.results.expand_cotangents(cotangents)
            backend.steps = self.steps
            gradients = run.reverse(backend.new_gradients(carry, outputs))
            return [*gradients.carry, *gradients.xs, *gradients.captured]


def as_truth_value(answer: Any) -> bool:
    """Whether a condition's answer is yes; what is no answer raises a StepError."""
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
        backend, run = call.first_sweep(leaves)
        call.results, tensors = LoopOutputs.of(backend, run.take(), leaves)
        return tensors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Hold what a second sweep would begin with."""
        call, *leaves = inputs
        ctx.call = call
        _save(ctx, leaves)
        still = [tensor for tensor, flow in zip(output, call.results.tensor_flows(), strict=True) if not flow]
        ctx.mark_non_differentiable(*still)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Run the reverse sweep, as a function of its own."""
        leaves = _saved(ctx)
        return None, *LoopBackward.apply(ctx.call, len(leaves), *leaves, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse forward mode."""
        raise StepError(
            "loops have no forward mode on PyTorch: use torch.func.grad or vjp, or write the loop plainly for jvp"
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: TorchLoopCall, *leaves: Any) -> Any:
        """Run a loop over a whole batch."""
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
        """Hold what the next derivative depends on."""
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
    ctx.set_materialize_grads(False)
    ctx.capture_ids = [None if isinstance(arg, Tensor) else arg for arg in args]
    ctx.save_for_backward(*[arg if isinstance(arg, Tensor) else None for arg in args])


def _saved(ctx: Any) -> list[Any]:
    return [
        number if tensor is None else tensor for number, tensor in zip(ctx.capture_ids, ctx.saved_tensors, strict=True)
    ]


def run(call: TorchLoopCall, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The carry and the outputs of a loop of which some leaf wants a gradient."""
    tensors = LoopFunction.apply(call, *leaves)  # type: ignore[no-untyped-call]
    results = call.results
    assert results is not None
    carry, outputs = results.with_arrays(tensors)
    return call.carry.unflatten(carry), results.outputs and results.outputs.unflatten(outputs)
