"""Loops under autograd: one primitive for all, with plain leaves going in and coming out.

In: a step, values, what is asked. Out: the carry and the outputs, which autograd differentiates: the first sweep runs
when the primitive is called, the reverse sweep when its cotangent comes. What is not traced runs as a plain loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from autograd.core import defjvp_argnums, defvjp_argnums, vspace
from autograd.tracer import getval, primitive

from remat.errors import StepError
from remat.execute import Run
from remat.execute.guard import Guard
from remat.execute.rng import read_generators, set_generators
from remat.execute.tree import Tree
from remat.frameworks.asked import Asked
from remat.frameworks.numpy.adjoint import AdjointVerbs
from remat.frameworks.numpy.body import Body, Inputs, Outputs
from remat.frameworks.numpy.captured import Place
from remat.frameworks.numpy.leaves import Spec, is_boxed, protected, writable
from remat.frameworks.numpy.meter import NumpyMeter
from remat.frameworks.numpy.recorded import AutogradVerbs
from remat.frameworks.numpy.verbs import NumpyVerbs, Wanted
from remat.measure import Measured, measure_step
from remat.planners import Plan
from remat.problem import Memory

__all__ = ["Call", "Step", "run"]


MOST_MEASURED = 256
# By code and looks: the size of the first tape, what was found, and in how much room.
_measured: dict[Any, tuple[int, Measured, int]] = {}


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

    def bind(self, values: list[Any]) -> AbstractContextManager[Callable[..., Any]]:
        """The step with these values for what it captured, as long as the context lasts."""
        ...


@dataclass
class Call(ABC):
    """One call of a loop: all of it but the values of its leaves, which are those of carry, inputs and captured."""

    step: Step
    carry: Tree
    xs: Tree
    sizes: tuple[int, int, int]  # leaves of the carry, of the inputs, captured
    asked: Asked
    vjp: Callable[..., Any] | None = None
    rows: dict[int, int] | None = None
    steps: int | None = None
    plan: Plan | None = None
    wanted: list[bool] = field(default_factory=list)
    pending: "tuple[NumpyVerbs, Run] | None" = None
    results: "Results | None" = None
    drawn_from: Any = None  # the state of the random generators before the first step, if steps draw

    @abstractmethod
    def sweep(self, leaves: Sequence[Any], guard: Guard | None) -> tuple[NumpyVerbs, Run]:
        """Run the first sweep, up to the turn."""

    def parts(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The leaves of the carry, of the inputs, and the captured ones."""
        a, b = self.sizes[0], self.sizes[0] + self.sizes[1]
        return list(leaves[:a]), list(leaves[a:b]), list(leaves[b:])

    def start(self, leaves: Sequence[Any], steps: int) -> tuple[NumpyVerbs, Any]:
        """Verbs for so many steps on plain leaves, and the first carry."""
        init, xs, captured = self.parts(leaves)
        specs = [Spec.of(leaf, name) for leaf, name in zip(init, self.carry.names("carry"), strict=True)]
        body = Body(self.carry, specs, Inputs([leaf[:steps] for leaf in xs], self.xs), Outputs(steps, self.rows))
        wanted = Wanted(*self.parts(self.wanted)[1:])
        verbs: NumpyVerbs
        if self.vjp is None:
            verbs = AutogradVerbs(self.step, body, captured, wanted)
        else:
            verbs = AdjointVerbs(self.step, body, captured, wanted, vjp=self.vjp)
        return verbs, self.carry.build([protected(leaf) for leaf in init])

    def first_sweep(self, leaves: Sequence[Any]) -> "Results":
        """Run forward; the run waits for its cotangent, and its results are given."""
        guard = None if self.asked.check == "never" else Guard(self.steps)
        verbs, run = self.sweep(leaves, guard)
        self.drawn_from = run.replay.first if run.replay.drew else None
        self.pending = verbs, run
        return Results.of(verbs.body, run.state)

    def reverse(self, leaves: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
        """The gradients of the wanted leaves. A second reverse sweep runs forward again first."""
        if self.pending is not None:
            (verbs, run), self.pending = self.pending, None
            return self._reverse(verbs, run, leaves, cotangents, wanted)
        guard = Guard(self.steps) if self.asked.check == "always" else None
        outside = None if self.drawn_from is None else read_generators()
        try:
            if outside is not None:
                set_generators(self.drawn_from)
            return self._reverse(*self.sweep(leaves, guard), leaves, cotangents, wanted)
        finally:
            if outside is not None:
                set_generators(outside)

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
        outside = read_generators()
        try:
            specs = tuple(Spec.of(leaf, "leaf") for leaf in leaves)
            key = (*self.step.looks, self.carry, self.xs, specs, tuple(self.wanted), self.vjp is None)
            verbs, state = self.start(leaves, 1)
            first = verbs.size(verbs.record(state, 0, 1)[1])
            known = _measured.get(key)
            assert self.asked.memory is not None
            room = self.asked.memory.device.capacity or 0
            if known is not None and room > known[2] and known[1].improves_in(room):
                known = None
            if known is None or not 0.98 * known[0] <= first <= 1.02 * known[0]:
                while len(_measured) >= MOST_MEASURED:
                    _measured.pop(next(iter(_measured)))
                known = _measured[key] = first, self._measure(leaves), room
            return known[1]
        finally:
            set_generators(outside)

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
        return measure_step(verbs, NumpyMeter(), state, steps, self.asked.memory.device.capacity or 0, ones)


@dataclass
class ScanCall(Call):
    """A loop of known length."""

    def sweep(self, leaves: Sequence[Any], guard: Guard | None) -> tuple[NumpyVerbs, Run]:
        """Run the plan's schedule up to the turn."""
        assert self.steps is not None
        if self.plan is None:
            self.plan = self.asked.plan_for(self.steps, lambda: self.measured(leaves))
        verbs, state = self.start(leaves, self.steps)
        total = self.plan.forward_steps + self.steps
        self.asked.note(self.steps, self.plan)
        run = self.asked.new_run(verbs, state, self.steps, guard, total)
        del state
        run.play(self.plan.schedule)
        return verbs, run


@dataclass
class WhileCall(Call):
    """A loop that goes on as long as `cond` holds, `most` steps at the most."""

    cond: Callable[[Any], Any] = lambda carry: False
    most: int | None = None

    def sweep(self, leaves: Sequence[Any], guard: Guard | None) -> tuple[NumpyVerbs, Run]:
        """Drive the loop to its end, keeping states as if any step could be the last; then it is a known schedule."""
        verbs, state = self.start(leaves, 0)
        run = self.asked.new_run(verbs, state, self.steps, guard, None)
        del state
        if self.plan is not None:  # it has been driven to its end before
            run.play(self.plan.schedule)
            return verbs, run
        goes_on = self._goes_on(verbs, run.state)
        # A step that never runs is not measured.
        asked = self.asked if goes_on else replace(self.asked, memory=Memory(slots=1))
        driver = asked.plan_for(None, lambda: self.measured(leaves)).start()
        while goes_on and driver.at + 1 != self.most:
            run.play(driver.advance())
            goes_on = self._goes_on(verbs, run.state)
        run.play(driver.last() if goes_on else driver.ended())
        self.plan = driver.plan()
        self.steps = self.plan.problem.units
        self.asked.note(self.steps, self.plan)
        return verbs, run

    def _goes_on(self, verbs: NumpyVerbs, carry: Any) -> bool:
        with self.step.bind(verbs.captured):
            return holds(self.cond(carry))


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
def _loop(call: Call, *leaves: Any) -> tuple[Any, ...]:
    call.results = call.first_sweep(leaves)
    return call.results.flowing()


def _vjp(argnums: Sequence[int], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    call, leaves, wanted = args[0], args[1:], [argnum - 1 for argnum in argnums]

    def vjp(cotangents: Any) -> Sequence[Any]:
        parts = [cotangents] if is_boxed(cotangents) else list(cotangents)
        if any(map(is_boxed, leaves)) or any(map(is_boxed, parts)):
            from remat.frameworks.numpy.derived import adjoint  # here, since it makes loops of its own

            return adjoint(call, leaves, cotangents, wanted)
        gradients: list[Any] = call.reverse(leaves, parts, wanted)
        return gradients

    return vjp


def _jvp(argnums: Sequence[int], tangents: Sequence[Any], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    from remat.frameworks.numpy.derived import tangent

    call, leaves = args[0], args[1:]
    given = dict(zip([argnum - 1 for argnum in argnums], tangents, strict=True))
    return tangent(call, leaves, given)


defvjp_argnums(_loop, _vjp)
defjvp_argnums(_loop, _jvp)


def run(call: Call, leaves: Sequence[Any]) -> tuple[Any, Any]:
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
