"""Loops under autograd: one flat function for all, with plain leaves going in and coming out.

In: a step, values, what is asked. Out: the carry and the outputs, which autograd differentiates: the first sweep runs
when the function is called, the reverse sweep when its cotangent comes. That sweep is a function of its own, so that
transforms of torch.func reach it and its derivative can be asked for (`derived.py`).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from remat.closures.capture import Captured
from remat.errors import StepError
from remat.execute.determinism import Guard
from remat.execute.rng_state import Replay, Source
from remat.frameworks.torch import leaves as kit
from remat.frameworks.torch.autocast import Modes
from remat.frameworks.torch.backend import TorchVerbs
from remat.frameworks.torch.device_determinism import LateGuard
from remat.frameworks.torch.leaves import looks
from remat.frameworks.torch.loop_outputs import Results, set_apart
from remat.frameworks.torch.tape import Opened
from remat.loops.loop_call import Call
from remat.loops.step_runner import Body, Inputs, Outputs
from remat.measuring import Measured

MOST_NUMBERS = 128  # of summaries; a first sweep stops for each of them

__all__ = ["Flows", "Loop", "Reverse", "TorchCall", "TorchStep", "holds", "run"]


@dataclass
class Flows:
    """Through which leaves gradients flow; `twins` are leaves of the carry that are put out as they are."""

    carry: list[bool]
    xs: list[bool]
    ys: list[bool] = field(default_factory=list)
    twins: dict[int, int] = field(default_factory=dict)


@dataclass
class TorchStep:
    """A step, with what was found out about it."""

    captured: Captured
    modes: Modes
    sources: Sequence[Source]
    flows: Flows
    bound: bool = False  # whether torch.func runs the loop at another level
    numbers: list[int] = field(default_factory=list)  # of the captured tensors among all found; -1 for others
    closed: list[bool] = field(default_factory=list)  # which of them steps use as they are: leaves of the graph
    many: bool = False  # whether the step could reach more tensors than it used at first
    modules: list[torch.nn.Module] = field(default_factory=list)  # that it closes over
    compiled: bool = False  # whether it, or something that it closes over, is compiled
    sharded: list[Any] = field(default_factory=list)  # modules of FSDP that the step calls

    def bind(self, values: list[Any]) -> AbstractContextManager[Callable[..., Any]]:
        """The step, with these values in the places of what it captured."""
        return self.captured.bind(dict(zip(self.numbers, values, strict=True)))


@dataclass
class TorchCall(Call[TorchVerbs]):
    """One call of a loop on tensors."""

    opened: Opened | None = None
    specs: list[Any] = field(default_factory=list)  # of the first carry
    replay: Replay | None = None
    results: Results | None = None
    mapped: "TorchCall | None" = None  # the same under torch.func.vmap

    def start(self, leaves: Sequence[Any], steps: int) -> tuple[TorchVerbs, Any]:
        """Verbs for so many steps, and the first carry, outside of any graph."""
        init, xs, _ = self.parts([leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        self.specs = specs = [looks(leaf, name) for leaf, name in zip(init, self.carry.names("carry"), strict=True)]
        body = Body(kit, self.carry, specs, Inputs(xs, self.xs), Outputs(kit, steps, self.rows))
        # A captured tensor that something else made is replaced by one that begins a graph: what is behind it is not
        # this loop's, and would be gone through again from every range.
        pairs = zip(self.parts(leaves)[2], self.step.closed, strict=True)
        verbs = TorchVerbs(self.step, body, [t if closed else t.detach().requires_grad_() for t, closed in pairs])
        verbs.steps = steps
        verbs.weighing = self.asked.call is not None
        if self.opened is None and self.asked.memory is not None and self.asked.memory.device.capacity is not None:
            verbs.weighing = True  # the first step, by which a measured one is known again
        return verbs, self.carry.build(init)

    def new_run(self, leaves: Sequence[Any], guard: Guard | None) -> tuple[TorchVerbs, Any]:
        """Verbs, and a run at the initial state; the first step has been recorded if this is the first run."""
        verbs, run = super().new_run(leaves, guard)
        verbs.opened, self.opened = self.opened, None
        if verbs.opened is not None:  # later steps of its range use the same tensors
            verbs.first, tape = True, verbs.opened.tape
            verbs.captured[: len(tape.captured)] = tape.captured
            tape.captured = verbs.captured
        if self.replay is not None:
            run.replay, self.replay = self.replay, None
        return verbs, run

    def new_guard(self) -> Guard:
        """On a device that runs on its own, the comparison waits for the end."""
        devices = {spec.device.type for spec in self.specs if spec.device is not None}
        return Guard(self.steps, MOST_NUMBERS) if devices <= {"cpu"} else LateGuard(self.steps)

    def holds(self, verbs: TorchVerbs, carry: Any) -> bool:
        """Whether the condition holds for a carry."""
        assert self.cond is not None
        with self.step.modes.on(grad=False), self.step.bind(verbs.captured):
            return holds(self.cond(carry))

    def measured(self, leaves: Sequence[Any]) -> Measured:
        """What a step costs."""
        from remat.frameworks.torch.measure import measured

        return measured(self, leaves)

    def reverse(self, leaves: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients of all leaves, None where there is none. A second reverse sweep runs forward again first."""
        with self.turned(leaves) as (verbs, run):
            assert self.results is not None
            carry, outputs = self.results.spread(cotangents)
            verbs.steps = self.steps
            verbs.cotangents = outputs if any(part is not None for part in outputs) else ()
            found: list[Any] = run.reverse(carry)
            return found + verbs.xs_grads + verbs.sums


def holds(answer: Any) -> bool:
    """Whether a condition's answer is yes; what is no answer raises a StepError."""
    count = answer.numel() if isinstance(answer, Tensor) else int(answer is not None)
    if count != 1:
        what = "None" if answer is None else f"{count} values"
        raise StepError(f"cond must return one truth value, and returned {what}; .all() and .any() make one of many")
    return bool(answer)


class Loop(torch.autograd.Function):
    """A loop: leaves go in, tensors come out."""

    @staticmethod
    def forward(call: TorchCall, *leaves: Any) -> tuple[Tensor, ...]:
        """Run the first sweep."""
        verbs, run = call.first_sweep(leaves)
        call.results, tensors = Results.of(verbs, run.take(), leaves)
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
        return None, *Reverse.apply(ctx.call, len(leaves), *leaves, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse forward mode."""
        raise StepError(
            "loops have no forward mode on PyTorch: use torch.func.grad or vjp, or write the loop plainly for jvp"
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: TorchCall, *leaves: Any) -> Any:
        """Run a loop over a whole batch."""
        from remat.frameworks.torch.vmap import mapped_loop

        return mapped_loop(info, dims[1:], call, leaves)


class Reverse(torch.autograd.Function):
    """The reverse sweep of a loop: leaves and cotangents go in, gradients of the leaves come out."""

    @staticmethod
    def forward(call: TorchCall, count: int, *args: Any) -> tuple[Any, ...]:
        """Run the reverse sweep."""
        return set_apart(call.reverse(args[:count], args[count:]), args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Hold what the next derivative depends on."""
        ctx.call, ctx.count, *args = inputs
        _save(ctx, args)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Differentiate the gradient."""
        from remat.frameworks.torch.second_order import pulled_again

        args = _saved(ctx)
        return None, None, *pulled_again(ctx.call, args[: ctx.count], args[ctx.count :], cotangents)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: TorchCall, count: int, *args: Any) -> Any:
        """Run the reverse sweep of a whole batch."""
        from remat.frameworks.torch.vmap import mapped_reverse

        return mapped_reverse(info, dims[2:], call, args[:count], args[count:])


def _save(ctx: Any, args: Sequence[Any]) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers = [None if isinstance(arg, Tensor) else arg for arg in args]
    ctx.save_for_backward(*[arg if isinstance(arg, Tensor) else None for arg in args])


def _saved(ctx: Any) -> list[Any]:
    return [number if tensor is None else tensor for number, tensor in zip(ctx.numbers, ctx.saved_tensors, strict=True)]


def run(call: TorchCall, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The carry and the outputs of a loop of which some leaf wants a gradient."""
    tensors = Loop.apply(call, *leaves)  # type: ignore[no-untyped-call]
    results = call.results
    assert results is not None
    carry, outputs = results.with_tensors(tensors)
    return call.carry.build(carry), results.outputs and results.outputs.build(outputs)
