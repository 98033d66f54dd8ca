"""Loops under autograd: one primitive for all, with plain leaves going in and coming out.

In: a step, values, what is asked. Out: the carry and the outputs, which autograd differentiates: the first sweep runs
when the primitive is called, the reverse sweep when its cotangent comes. What is not traced runs as a plain loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from autograd.extend import defjvp_argnums, defvjp_argnums, primitive, vspace
from autograd.tracer import getval

from remat.errors import StepError
from remat.execute import Interpreter
from remat.execute.gradients import Gradients
from remat.execute.state_replay import preserved_state
from remat.frameworks.numpy import leaves as leaf_ops
from remat.frameworks.numpy.autograd_backend import AutogradBackend
from remat.frameworks.numpy.backend import GradientMask, NumpyBackend
from remat.frameworks.numpy.custom_vjp_backend import CustomVjpBackend
from remat.frameworks.numpy.leaves import ArraySpec, ensure_writable, is_boxed, readonly_view
from remat.frameworks.numpy.meter import NumpyMeter
from remat.loops.loop_call import LoopCall
from remat.loops.stacked_values import Inputs, Outputs
from remat.loops.step_runner import StepRunner
from remat.measuring import MeasurementSetup, StepCost, measure_step
from remat.measuring.cost_cache import cached_cost
from remat.pytree import TreeDef

__all__ = ["NumpyCall", "as_truth_value", "run"]


@dataclass
class NumpyCall(LoopCall[NumpyBackend]):
    """One call of a loop on NumPy's leaves."""

    vjp: Callable[..., Any] | None = None
    results: "LoopResult | None" = None

    def new_backend(self, leaves: Sequence[Any], steps: int) -> tuple[NumpyBackend, Any]:
        """Verbs for so many steps on plain leaves, and the first carry."""
        init, xs, captured = self.split(leaves)
        specs = [ArraySpec.of(leaf, name) for leaf, name in zip(init, self.carry.paths("carry"), strict=True)]
        inputs = Inputs([readonly_view(leaf[:steps]) for leaf in xs], self.xs)
        runner = StepRunner(leaf_ops, self.carry, specs, inputs, Outputs(leaf_ops, steps, self.rows))
        wanted = GradientMask(*self.split(self.needs_grad)[1:])
        backend: NumpyBackend
        if self.vjp is None:
            backend = AutogradBackend(self.step, runner, captured, wanted)
        else:
            backend = CustomVjpBackend(self.step, runner, captured, wanted, vjp=self.vjp)
        return backend, self.carry.unflatten([readonly_view(leaf) for leaf in init])

    def evaluate_cond(self, backend: NumpyBackend, carry: Any) -> bool:
        """Whether the condition holds for a carry."""
        assert self.cond is not None
        with self.step.rebind(backend.captured):
            return as_truth_value(self.cond(carry))

    def reverse(self, leaves: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
        """The gradients of the wanted leaves. A second reverse sweep runs forward again first."""
        with self.at_turn(leaves) as (backend, run):
            return self._reverse(backend, run, leaves, cotangents, wanted)

    def _reverse(
        self,
        backend: NumpyBackend,
        run: Interpreter[NumpyBackend],
        leaves: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[int],
    ) -> list[Any]:
        assert self.results is not None
        carry, outputs = self.results.expand_cotangents(cotangents)
        gradients = run.reverse(backend.new_gradients(carry, outputs, self.split(leaves)[1]))
        by_leaf = [*gradients.carry, *gradients.xs, *(total and total[0] for total in gradients.captured)]
        return [_zeros(leaves[i]) if by_leaf[i] is None else by_leaf[i] for i in wanted]

    def measured(self, leaves: Sequence[Any]) -> StepCost:
        """What a step costs: from a few runs of the first ones, or from an earlier loop whose first step is as large.

        Global random numbers are not used up.
        """
        with preserved_state(self.step.replayable_states):
            looks = tuple(ArraySpec.of(leaf, "leaf") for leaf in leaves)
            key = ("numpy", *self.step.cache_key, self.carry, self.xs, looks, tuple(self.needs_grad), self.vjp is None)
            backend, state = self.new_backend(leaves, 1)
            first = backend.size(backend.record(state, 0, 1)[1])
            assert self.request.memory is not None
            room = self.request.memory.device.capacity or 0
            return cached_cost(key, first, room, lambda: self._measure(leaves))

    def _measure(self, leaves: Sequence[Any]) -> StepCost:
        """Run the first steps a few times; only the first one if the length is not known, since more may not follow."""
        steps = min(self.steps or 1, 8)
        backend, state = self.new_backend(leaves, steps)
        xs = [leaf[:steps] for leaf in self.split(leaves)[1]]
        empty = backend.new_gradients([], (), xs)

        def ones_like(state: Any, gradients: Gradients | None) -> Gradients:
            gradients = gradients or empty
            runner, outputs = backend.runner, gradients.outputs
            if runner.outputs.leaves and not outputs:
                outputs = _ones(runner.outputs.leaves, runner.outputs.specs)
            carry = _ones(runner.tree.flatten_like(state, "carry"), runner.specs)
            return replace(gradients, carry=carry, outputs=outputs)

        assert self.request.memory is not None
        return measure_step(
            MeasurementSetup(backend, NumpyMeter(), state, ones_like), steps, self.request.memory.device.capacity or 0
        )


def _ones(leaves: Sequence[Any], specs: Sequence[ArraySpec]) -> list[Any]:
    return [np.ones_like(leaf) if spec.differentiable else None for leaf, spec in zip(leaves, specs, strict=True)]


def as_truth_value(answer: Any) -> bool:
    """Whether a condition's answer is yes; what is no answer raises a StepError."""
    answer = getval(answer)
    if answer is None or np.size(answer) != 1:
        what = "None" if answer is None else f"{np.size(answer)} values"
        raise StepError(f"cond must return one truth value, and returned {what}; np.all and np.any make one of many")
    return bool(answer)


@dataclass
class LoopResult:
    """What a loop gives: leaves of the last carry and of the outputs; those without gradient go beside autograd."""

    leaves: list[Any]
    specs: list[ArraySpec]
    carry_size: int
    outputs: TreeDef

    @classmethod
    def of(cls, runner: StepRunner, carry: Any) -> "LoopResult":
        """The results of a body that has run."""
        leaves = [ensure_writable(leaf) for leaf in runner.tree.flatten_like(carry, "carry")]
        specs = [*runner.specs, *runner.outputs.specs]
        tree = runner.outputs.tree if runner.outputs.tree is not None else TreeDef(type(None))
        return cls([*leaves, *runner.outputs.leaves], specs, len(leaves), tree)

    @property
    def flows(self) -> list[bool]:
        """Whether gradients flow through each leaf."""
        return [spec.differentiable for spec in self.specs]

    def flowing(self) -> tuple[Any, ...]:
        """The leaves that gradients flow through."""
        return tuple(leaf for leaf, flows in zip(self.leaves, self.flows, strict=True) if flows)

    def with_arrays(self, flowing: Any) -> list[Any]:
        """All leaves, those that gradients flow through replaced."""
        rest = iter([flowing[i] for i in range(len(flowing))])
        return [next(rest) if flows else leaf for leaf, flows in zip(self.leaves, self.flows, strict=True)]

    def expand_cotangents(self, cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Cotangents for all leaves, of the carry and of the outputs; None where there is none, or only zeros."""
        rest = iter([cotangents[i] for i in range(len(cotangents))])
        expanded = [next(rest) if flows else None for flows in self.flows]
        expanded = [part if part is not None and np.any(part) else None for part in expanded]
        return expanded[: self.carry_size], expanded[self.carry_size :]


@primitive  # type: ignore[untyped-decorator]
def _loop(call: NumpyCall, *leaves: Any) -> tuple[Any, ...]:
    backend, run = call.first_sweep(leaves)
    call.results = LoopResult.of(backend.runner, run.take())
    return call.results.flowing()


def _vjp(argnums: Sequence[int], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    call, leaves, wanted = args[0], args[1:], [argnum - 1 for argnum in argnums]

    def vjp(cotangents: Any) -> Sequence[Any]:
        parts = [cotangents] if is_boxed(cotangents) else list(cotangents)
        if any(map(is_boxed, leaves)) or any(map(is_boxed, parts)):
            from remat.frameworks.numpy.second_order import adjoint  # here, since it makes loops of its own

            return adjoint(call, leaves, cotangents, wanted)
        gradients: list[Any] = call.reverse(leaves, parts, wanted)
        return gradients

    return vjp


def _jvp(argnums: Sequence[int], tangents: Sequence[Any], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    from remat.frameworks.numpy.second_order import tangent

    call, leaves = args[0], args[1:]
    given = dict(zip([argnum - 1 for argnum in argnums], tangents, strict=True))
    return tangent(call, leaves, given)


defvjp_argnums(_loop, _vjp)
defjvp_argnums(_loop, _jvp)


def run(call: NumpyCall, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The carry and the outputs of a loop of which some leaf is traced."""
    call.needs_grad = [is_boxed(leaf) for leaf in leaves]
    flowing = _loop(call, *leaves)
    results = call.results
    assert results is not None
    found = results.with_arrays(flowing)
    results.leaves = [None] * len(results.leaves)  # the caller has them; here they would only live longer
    return call.carry.unflatten(found[: results.carry_size]), results.outputs.unflatten(found[results.carry_size :])


def _zeros(leaf: Any) -> Any:
    return vspace(leaf).zeros()
