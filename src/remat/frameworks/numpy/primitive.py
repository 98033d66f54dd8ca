"""Loops under autograd: one primitive for all, with plain leaves going in and coming out.

In: a step, values, what is asked. Out: the carry and the outputs, which autograd differentiates: the first sweep runs
when the primitive is called, the reverse sweep when its cotangent comes. What is not traced runs as a plain loop.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from autograd.core import defjvp_argnums, defvjp_argnums, vspace
from autograd.tracer import getval, primitive

from remat.closures.capture import Place
from remat.errors import StepError
from remat.execute import Run
from remat.execute.rng_state import Source, set_back
from remat.frameworks.numpy import leaves as kit
from remat.frameworks.numpy.autograd_backend import AutogradVerbs
from remat.frameworks.numpy.backend import NumpyVerbs, Wanted
from remat.frameworks.numpy.custom_vjp_backend import AdjointVerbs
from remat.frameworks.numpy.leaves import Spec, is_boxed, protected, writable
from remat.frameworks.numpy.meter import NumpyMeter
from remat.loops.loop_call import Call, measured_before
from remat.loops.step_runner import Body, Inputs, Outputs
from remat.measuring import Measured, Subject, measure_step
from remat.pytree import Tree

__all__ = ["NumpyCall", "Step", "holds", "run"]


class Step(Protocol):
    """A step as a function of what it captured."""

    @property
    def looks(self) -> list[Any]:
        """What its cost depends on, beside its arguments: code, shapes, whole numbers."""
        ...

    @property
    def places(self) -> list[Place]:
        """Where captured values were found, by name."""
        ...

    @property
    def sources(self) -> list[Source]:
        """Private random generators that it draws from."""
        ...

    def bind(self, values: list[Any]) -> AbstractContextManager[Callable[..., Any]]:
        """The step with these values for what it captured, as long as the context lasts."""
        ...


@dataclass
class NumpyCall(Call[NumpyVerbs]):
    """One call of a loop on NumPy's leaves."""

    vjp: Callable[..., Any] | None = None
    results: "Results | None" = None

    def start(self, leaves: Sequence[Any], steps: int) -> tuple[NumpyVerbs, Any]:
        """Verbs for so many steps on plain leaves, and the first carry."""
        init, xs, captured = self.parts(leaves)
        specs = [Spec.of(leaf, name) for leaf, name in zip(init, self.carry.names("carry"), strict=True)]
        inputs = Inputs([protected(leaf[:steps]) for leaf in xs], self.xs)
        body = Body(kit, self.carry, specs, inputs, Outputs(kit, steps, self.rows))
        wanted = Wanted(*self.parts(self.wanted)[1:])
        verbs: NumpyVerbs
        if self.vjp is None:
            verbs = AutogradVerbs(self.step, body, captured, wanted)
        else:
            verbs = AdjointVerbs(self.step, body, captured, wanted, vjp=self.vjp)
        return verbs, self.carry.build([protected(leaf) for leaf in init])

    def holds(self, verbs: NumpyVerbs, carry: Any) -> bool:
        """Whether the condition holds for a carry."""
        assert self.cond is not None
        with self.step.bind(verbs.captured):
            return holds(self.cond(carry))

    def reverse(self, leaves: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
        """The gradients of the wanted leaves. A second reverse sweep runs forward again first."""
        with self.turned(leaves) as (verbs, run):
            return self._reverse(verbs, run, leaves, cotangents, wanted)

    def _reverse(
        self, verbs: NumpyVerbs, run: Run, leaves: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[int]
    ) -> list[Any]:
        assert self.results is not None
        carry, outputs = self.results.spread(cotangents)
        xs = self.parts(leaves)[1]
        verbs.cotangents = outputs if any(part is not None for part in outputs) else ()
        verbs.xs_grads = [_zeros(leaf) if want else None for leaf, want in zip(xs, verbs.wanted.xs, strict=True)]
        found = run.reverse(carry) + verbs.xs_grads + [total and total[0] for total in verbs.captured_sums]
        return [_zeros(leaves[i]) if found[i] is None else found[i] for i in wanted]

    def measured(self, leaves: Sequence[Any]) -> Measured:
        """What a step costs: from a few runs of the first ones, or from an earlier loop whose first step is as large.

        Global random numbers are not used up.
        """
        with set_back(self.step.sources):
            looks = tuple(Spec.of(leaf, "leaf") for leaf in leaves)
            key = ("numpy", *self.step.looks, self.carry, self.xs, looks, tuple(self.wanted), self.vjp is None)
            verbs, state = self.start(leaves, 1)
            first = verbs.size(verbs.record(state, 0, 1)[1])
            assert self.asked.memory is not None
            room = self.asked.memory.device.capacity or 0
            return measured_before(key, first, room, lambda: self._measure(leaves))

    def _measure(self, leaves: Sequence[Any]) -> Measured:
        """Run the first steps a few times; only the first one if the length is not known, since more may not follow."""
        steps = min(self.steps or 1, 8)
        verbs, state = self.start(leaves, steps)
        xs = self.parts(leaves)[1]
        verbs.xs_grads = [_zeros(leaf[:steps]) if w else None for leaf, w in zip(xs, verbs.wanted.xs, strict=True)]

        def ones(state: Any) -> list[Any]:
            body, outputs = verbs.body, verbs.body.outputs
            if outputs.leaves and not verbs.cotangents:
                pairs = zip(outputs.leaves, outputs.specs, strict=True)
                verbs.cotangents = [np.ones_like(leaf) if spec.differentiable else None for leaf, spec in pairs]
            kinds = zip(body.tree.apart(state, "carry"), body.specs, strict=True)
            return [np.ones_like(leaf) if spec.differentiable else None for leaf, spec in kinds]

        assert self.asked.memory is not None
        return measure_step(Subject(verbs, NumpyMeter(), state, ones), steps, self.asked.memory.device.capacity or 0)


def holds(answer: Any) -> bool:
    """Whether a condition's answer is yes; what is no answer raises a StepError."""
    answer = getval(answer)
    if answer is None or np.size(answer) != 1:
        what = "None" if answer is None else f"{np.size(answer)} values"
        raise StepError(f"cond must return one truth value, and returned {what}; np.all and np.any make one of many")
    return bool(answer)


@dataclass
class Results:
    """What a loop gives: leaves of the last carry and of the outputs; those without gradient go beside autograd."""

    leaves: list[Any]
    specs: list[Spec]
    carry_size: int
    outputs: Tree

    @classmethod
    def of(cls, body: Body, carry: Any) -> "Results":
        """The results of a body that has run."""
        leaves = [writable(leaf) for leaf in body.tree.apart(carry, "carry")]
        specs = [*body.specs, *body.outputs.specs]
        tree = body.outputs.tree if body.outputs.tree is not None else Tree(type(None))
        return cls([*leaves, *body.outputs.leaves], specs, len(leaves), tree)

    @property
    def flows(self) -> list[bool]:
        """Whether gradients flow through each leaf."""
        return [spec.differentiable for spec in self.specs]

    def flowing(self) -> tuple[Any, ...]:
        """The leaves that gradients flow through."""
        return tuple(leaf for leaf, flows in zip(self.leaves, self.flows, strict=True) if flows)

    def replaced(self, flowing: Any) -> list[Any]:
        """All leaves, those that gradients flow through replaced."""
        rest = iter([flowing[i] for i in range(len(flowing))])
        return [next(rest) if flows else leaf for leaf, flows in zip(self.leaves, self.flows, strict=True)]

    def spread(self, cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Cotangents for all leaves, of the carry and of the outputs; None where there is none, or only zeros."""
        rest = iter([cotangents[i] for i in range(len(cotangents))])
        spread = [next(rest) if flows else None for flows in self.flows]
        spread = [part if part is not None and np.any(part) else None for part in spread]
        return spread[: self.carry_size], spread[self.carry_size :]


@primitive  # type: ignore[untyped-decorator]
def _loop(call: NumpyCall, *leaves: Any) -> tuple[Any, ...]:
    verbs, run = call.first_sweep(leaves)
    call.results = Results.of(verbs.body, run.take())
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
    call.wanted = [is_boxed(leaf) for leaf in leaves]
    flowing = _loop(call, *leaves)
    results = call.results
    assert results is not None
    found = results.replaced(flowing)
    results.leaves = [None] * len(results.leaves)  # the caller has them; here they would only live longer
    return call.carry.build(found[: results.carry_size]), results.outputs.build(found[results.carry_size :])


def _zeros(leaf: Any) -> Any:
    return vspace(leaf).zeros()
