"""Host-driven loops (`driven=True`): the interpreter runs in Python and makes one compiled call for each op.

Any plan can be run, progress is reported, and a profile traces every op. Such a loop cannot be part of a traced
function (jit, vmap, a second derivative), since its ops run one after another on concrete arrays.
"""

from time import perf_counter
from typing import Any

import jax

from remat.errors import StepError
from remat.execute import Interpreter
from remat.frameworks.jax.avals import Flags, Tracer
from remat.frameworks.jax.loops.backend import JaxBackend, State
from remat.frameworks.jax.loops.chunked_steps import Grads
from remat.frameworks.jax.loops.measure import step_sizes
from remat.frameworks.jax.loops.planning import plan_for_jit
from remat.frameworks.jax.loops.residuals import StepVJP
from remat.frameworks.jax.loops.scan_function import ScanFunction, ScanLinearization
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.transforms.differentiable import Arrays, Linearization
from remat.frameworks.jax.transforms.primitives import call
from remat.loops.loop_call import LoopCall
from remat.loops.request import LoopRequest
from remat.measuring import StepCost
from remat.pytree import LEAF, PyTree

__all__ = ["HostLoop"]


class HostLoop(ScanFunction):
    """A loop whose derivative is host-driven; undifferentiated, it is the compiled loop."""

    eager = True

    def __init__(self, step: StepJaxpr, rows: int | None, steps: int, request: LoopRequest) -> None:
        super().__init__(step, rows, steps, plan_for_jit(request))
        self.request = request
        self.key = None  # no cache key: the interpreter that waits for its cotangents belongs to one call

    def plain(self) -> ScanFunction:
        """The same loop, compiled as a whole."""
        return ScanFunction(self.step, self.rows, self.steps, self.planner)

    def run(self, *args: Any) -> Arrays:
        """The results of the compiled loop."""
        _reject_tracers(args)
        return call(self.plain(), args)

    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Arrays]":
        """The linearization, which has no residuals: its interpreter waits at the turn for the cotangents."""
        return HostLinearization(self, StepVJP(self.step, self.activity(active_inputs)), active_inputs), ()

    def batched(self, axis: Any, flags: Flags, args: Arrays) -> PyTree:
        """Raise a StepError, since vmap traces."""
        raise _traced_error()


class HostLinearization(ScanLinearization):
    """The linearization of a host-driven loop: `forward` is the first sweep, `vjp` the reverse sweep."""

    extra_inputs = 0
    eager = True

    def __init__(self, loop: HostLoop, step_vjp: StepVJP, active_inputs: Flags) -> None:
        super().__init__(loop, step_vjp, active_inputs, None)  # type: ignore[arg-type]
        self.loop_call = HostLoopCall(loop, step_vjp, ready=bool(loop.request.call or loop.request.progress))

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results of the first sweep; there are no residuals, since the interpreter waits in `loop_call`."""
        _reject_tracers(args)
        backend, interpreter = self.loop_call.first_sweep(args)
        return [*interpreter.take().leaves, *backend.ys], ()

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs, by the ops after the turn."""
        _reject_tracers([*args, *cotangents])
        carry_bar, y_bars, nonzero_ys = self.split_cotangents(nonzero, cotangents)
        with self.loop_call.at_turn(args) as (backend, interpreter):
            gradients = interpreter.reverse(backend.new_gradients(carry_bar, y_bars, nonzero_ys))
        return self.input_cotangents(Grads(list(gradients.carry), gradients.captured, gradients.xs))

    def _jvp_loop(self, args: Arrays, tangents: Arrays) -> tuple[ScanFunction, Arrays]:
        """The loop of states and tangents, compiled as a whole: forward mode has no tapes and needs no plan."""
        assert isinstance(self.loop, HostLoop)
        return ScanLinearization(self.loop.plain(), self.step_vjp, self.active_inputs, None)._jvp_loop(args, tangents)  # type: ignore[arg-type]


class HostLoopCall(LoopCall[JaxBackend]):
    """One call of a host-driven loop."""

    def __init__(self, loop: HostLoop, step_vjp: StepVJP, *, ready: bool) -> None:
        self.loop, self.step_vjp, self.ready = loop, step_vjp, ready
        request = LoopRequest(loop.request.memory, loop.request.plan, "never", loop.request.progress, loop.request.call)
        super().__init__(loop.step, LEAF, LEAF, (0, 0, 0), request, steps=loop.steps)

    def new_backend(self, leaves: Arrays, steps: int) -> tuple[JaxBackend, State]:
        """A backend, and the first carry."""
        _, consts, carry, xs = self.loop.split_args(leaves)
        return JaxBackend(self.loop, self.step_vjp, consts, xs, ready=self.ready), State(tuple(carry), kept=True)

    def evaluate_cond(self, backend: JaxBackend, carry: PyTree) -> bool:
        """Never called: the length is known."""
        raise AssertionError("a driven loop has a known length")

    def measured(self, leaves: Arrays) -> StepCost:
        """The cost of a step: bytes from its avals, times from one forward step with the usual ratios."""
        sizes = step_sizes(self.step_vjp)
        backend, state = self.new_backend(leaves, 1)
        # Run once before the clock starts, because the first call compiles.
        jax.block_until_ready(backend.advance(state, 0, 1).leaves)
        began = perf_counter()
        jax.block_until_ready(backend.advance(state, 0, 1).leaves)
        return StepCost(sizes.loop(None, seconds=perf_counter() - began), sizes.workspace, bookkeeping=0)

    def forward_sweep(self, leaves: Arrays, determinism: Any) -> tuple[JaxBackend, Interpreter[JaxBackend]]:
        """Run the first sweep up to the turn; later sweeps do not write outputs."""
        backend, interpreter = super().forward_sweep(leaves, determinism)
        # Recomputed steps would write the same outputs again, into buffers that belong to the caller by then.
        backend.in_first_sweep = False
        return backend, interpreter


def _reject_tracers(values: Arrays) -> None:
    """Raise a StepError if a value is traced."""
    if any(isinstance(value, Tracer) for value in values):
        raise _traced_error()


def _traced_error() -> StepError:
    return StepError(
        "driven=True runs a loop op by op from Python, so it cannot be called inside jit, vmap or another traced "
        "function. Call it outside, as in jax.grad(loss)(params) without jit, or leave driven=True out. Second "
        "derivatives and jax.jacrev trace it too"
    )
