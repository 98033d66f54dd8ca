"""The cost of a step on JAX: bytes from its avals and one compiled step, typical times; nothing is run."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import jax

from remat.errors import ProblemError
from remat.frameworks.jax.avals import Aval, is_symbolic, nbytes, select
from remat.frameworks.jax.loops.chunked_steps import unroll_factor
from remat.frameworks.jax.loops.residuals import StepVJP
from remat.frameworks.jax.transforms.differentiable import Arrays
from remat.problem import Loop
from remat.pytree import PyTree

__all__ = ["StepSizes", "step_sizes"]

# Relative times of a step forward, recorded and pulled back, and of a chunk in addition to its steps, measured with
# LSTMs. On a GPU each chunk waits for the host, and longer if it has a loop inside or if the first chunk has another
# length.
_ON_CPU = 1.0, 1.1, 2.0, 0.5
_UNROLLED = 0.8, 1.0, 2.3, 5.0
_IN_LOOPS = 1.0, 1.2, 2.5, 12.0
_OTHER_FIRST = 5.0


class StepSizes(NamedTuple):
    """Bytes of a state, of the residuals of a step, of the workspace (everything no plan counts), and of a gradient."""

    state: int
    tape: int
    workspace: int
    gradient: int  # of everything that the step closes over
    shared: int = 0  # residuals that all steps share; the workspace has them once

    def loop(self, steps: int | None, length: int = 1, seconds: float = 1.0) -> Loop:
        """The problem of `steps` such steps in chunks of `length`; a forward step takes `seconds`."""
        on_cpu = jax.default_backend() == "cpu"
        forward, record, backward, per_range = (
            _ON_CPU if on_cpu else _UNROLLED if length <= unroll_factor(length) else _IN_LOOPS
        )
        per_range += _OTHER_FIRST if steps and steps % length and not on_cpu else 0.0
        forward, record, backward, per_range = (seconds * time for time in (forward, record, backward, per_range))
        return Loop(steps, max(1, self.state), self.tape, forward, record, backward, per_range=per_range)


@lru_cache(maxsize=64)
def _pullback_bytes(step_vjp: StepVJP) -> int:
    """The temporaries of recording and pulling back one step, as reported by XLA after compiling it; 0 if unknown.

    They include the residuals where XLA holds all of them at once, and are counted in addition to the tape: XLA copies
    residuals out of the buffer of a range before using them, and holds both for a while.

    Avals are not enough: a step that is itself a checkpoint has almost no residuals and recomputes them all. The cost
    is compiling one step, and only if the budget is in bytes.
    """
    step, activity = step_vjp.step, step_vjp.activity
    n, end = step.n_consts, step.n_consts + step.n_carry

    def pull_back(args: Arrays, carry_bar: Arrays, y_bar: Arrays) -> PyTree:
        residuals = step_vjp.record(args[:n], args[n:end], args[end:])[2]
        return step_vjp.vjp(residuals, args[:n], args[end:], carry_bar, y_bar)

    def shapes(avals: Sequence[Aval]) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]

    bars = shapes(select(activity.carry, step.avals[n:end])), shapes(select(activity.ys, step.y_avals))
    try:
        analysis = jax.jit(pull_back).lower(shapes(step.avals), *bars).compile().memory_analysis()
    except Exception:  # a step inside shard_map is not a program of its own; some devices report nothing
        return 0
    return int(getattr(analysis, "temp_size_in_bytes", 0))


def step_sizes(step_vjp: StepVJP) -> StepSizes:
    """The sizes of a step, from its avals; a ProblemError if they are symbolic."""
    step, avals = step_vjp.step, step_vjp.step.avals
    symbolic = sorted({str(size) for aval in avals for size in aval.shape if is_symbolic(size)})
    if symbolic:
        raise ProblemError(
            f"memory= needs the sizes of a step in bytes, and these depend on {', '.join(symbolic)}, which "
            "jax.export leaves open. Give slots=, which is a number of kept states whatever their size"
        )
    carry = avals[step.n_consts : step.n_consts + step.n_carry]
    state = sum(map(nbytes, select(step_vjp.needed, carry)))
    rest = sum(map(nbytes, carry)) - state  # no residual depends on these, such as buffers
    gradient = sum(map(nbytes, select(step_vjp.activity.consts, avals[: step.n_consts])))
    # There is one more state than slots, for states that are not kept. The carry and the cotangent are copied where
    # loops start. While a step is pulled back, at least about as many bytes as its residuals are in use in addition.
    workspace = 4 * state + 3 * rest + max(step_vjp.nbytes, _pullback_bytes(step_vjp)) + step_vjp.shared_nbytes
    return StepSizes(state, step_vjp.nbytes, workspace, gradient, step_vjp.shared_nbytes)
