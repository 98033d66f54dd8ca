"""A loop that Python drives: the shared interpreter, and compiled calls that it makes, one for each op.

It is for long runs that are watched, and for any plan: progress is told, ops are traced. It cannot be part of a traced
function, since the ops are carried out one after another as the schedule says.
"""

from time import perf_counter
from typing import Any

import jax
import jax.core

from remat.errors import StepError
from remat.execute import Run
from remat.frameworks.jax.avals import Flags
from remat.frameworks.jax.backend import JaxVerbs, State
from remat.frameworks.jax.differentiable import Arrays, Derivative
from remat.frameworks.jax.planning import planner_for, sizes_of
from remat.frameworks.jax.primitives import call
from remat.frameworks.jax.residuals import Taped
from remat.frameworks.jax.scan_function import Loop, LoopDerivative
from remat.frameworks.jax.step_jaxpr import Step
from remat.loops.loop_call import Call
from remat.loops.request import Asked
from remat.measuring import Measured
from remat.pytree import LEAF

__all__ = ["Driven"]


class Driven(Loop):
    """A loop whose derivative is driven by Python."""

    eager = True

    def __init__(self, step: Step, rows: int | None, steps: int, asked: Asked) -> None:
        super().__init__(step, rows, steps, planner_for(asked))
        self.asked = asked
        self.key = None  # a run belongs to one call

    def plain(self) -> Loop:
        """The loop that JAX compiles as a whole."""
        return Loop(self.step, self.rows, self.steps, self.planner)

    def run(self, *args: Any) -> Arrays:
        """The plain loop."""
        _refuse_tracers(args)
        return call(self.plain(), args)

    def derivative(self, moving: Flags, args: Arrays) -> "tuple[Derivative, Arrays]":
        """The derivative, one run of which waits for its cotangents."""
        return DrivenDerivative(self, Taped(self.step, self.flow(moving)), moving), ()

    def batched(self, axis: Any, flags: Flags, args: Arrays) -> Any:
        """An error: what is mapped is a traced function."""
        raise _traced_error()


class DrivenDerivative(LoopDerivative):
    """The derivative of a driven loop: a run up to its turn, and what is left of it."""

    extras = 0
    eager = True

    def __init__(self, loop: Driven, taped: Taped, moving: Flags) -> None:
        super().__init__(loop, taped, moving, None)  # type: ignore[arg-type]
        self.driven = JaxCall(loop, taped, ready=bool(loop.asked.call or loop.asked.progress))

    def saving(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results; the run is held here."""
        _refuse_tracers(args)
        verbs, run = self.driven.first_sweep(args)
        return [*run.take().leaves, *verbs.ys], ()

    def pull(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of what moves: the ops after the turn."""
        _refuse_tracers([*args, *cotangents])
        carry_bar, y_bars, given_ys = self._cotangents(given, cotangents)
        with self.driven.turned(args) as (verbs, run):
            verbs.turn(y_bars, given_ys)
            before = run.reverse(carry_bar)
        return self._wanted(verbs.sums, before, verbs.xs_bar)

    def _dual(self, args: Arrays, tangents: Arrays) -> tuple[Loop, Arrays]:
        """Tangents go along with a plain loop."""
        assert isinstance(self.loop, Driven)
        return LoopDerivative(self.loop.plain(), self.taped, self.moving, None)._dual(args, tangents)  # type: ignore[arg-type]


class JaxCall(Call[JaxVerbs]):
    """One call of a driven loop."""

    def __init__(self, loop: Driven, taped: Taped, *, ready: bool) -> None:
        self.loop, self.taped, self.ready = loop, taped, ready
        asked = Asked(loop.asked.memory, loop.asked.plan, "never", loop.asked.progress, loop.asked.call)
        super().__init__(loop.step, LEAF, LEAF, (0, 0, 0), asked, steps=loop.steps)

    def start(self, leaves: Arrays, steps: int) -> tuple[JaxVerbs, State]:
        """Verbs, and the first carry."""
        _, consts, carry, xs = self.loop.apart(leaves)
        return JaxVerbs(self.loop, self.taped, consts, xs, ready=self.ready), State(tuple(carry), kept=True)

    def holds(self, verbs: JaxVerbs, carry: Any) -> bool:
        """Nothing: the length is known."""
        raise AssertionError("a driven loop has a known length")

    def measured(self, leaves: Arrays) -> Measured:
        """What a step costs: bytes by its looks, times by that of a step, with the usual ratios."""
        sizes = sizes_of(self.taped)
        verbs, state = self.start(leaves, 1)
        jax.block_until_ready(verbs.advance(state, 0, 1).leaves)
        began = perf_counter()
        jax.block_until_ready(verbs.advance(state, 0, 1).leaves)
        return Measured(sizes.loop(None, seconds=perf_counter() - began), sizes.aside, own=0)

    def sweep(self, leaves: Arrays, guard: Any) -> tuple[JaxVerbs, Run]:
        """The first sweep; after it nothing is put out again."""
        verbs, run = super().sweep(leaves, guard)
        verbs.first = False
        return verbs, run


def _refuse_tracers(values: Arrays) -> None:
    if any(isinstance(value, jax.core.Tracer) for value in values):
        raise _traced_error()


def _traced_error() -> StepError:
    return StepError(
        "driven=True runs a loop op by op, outside of jit, vmap and other traced functions, and is called inside of "
        "one here. Call it outside, as in jax.grad(loss)(params) without jit; or leave driven=True out. Second "
        "derivatives and jax.jacrev trace it too"
    )
