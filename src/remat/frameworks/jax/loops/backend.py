"""The backend of JAX for host-driven loops: each op is one compiled call, or a few for a recorded range.

JAX arrays are immutable, so keeping a state means holding a reference. A state that is not kept is donated to the
compiled call that advances it, which reuses its buffers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from remat.execute.gradients import Gradients
from remat.execute.rng_state import ReplayableState
from remat.frameworks.jax.avals import Flags, have_distinct_buffers, nbytes, zeros_like_aval
from remat.frameworks.jax.loops.chunked_steps import ChunkedSteps, Grads
from remat.frameworks.jax.loops.residuals import StepVJP
from remat.frameworks.jax.loops.scan_function import ScanFunction
from remat.frameworks.jax.loops.tape_contents import StepListing
from remat.frameworks.jax.transforms.differentiable import Arrays, CacheKeyed
from remat.memory_meter import Meter
from remat.pytree import Leaf, PyTree

__all__ = ["JaxBackend", "State"]


class State(NamedTuple):
    """The leaves of a carry; a state that is `kept` is not donated."""

    leaves: tuple[PyTree, ...]
    kept: bool = False


class CompiledRange(CacheKeyed):
    """The static argument of the compiled calls: the step, and the number of steps in a recorded range.

    Equal ranges have equal keys, so that `jax.jit` compiles each length once.
    """

    def __init__(self, step_vjp: StepVJP, length: int) -> None:
        self.step_vjp, self.length = step_vjp, length
        self.key = step_vjp, length

    def steps(self, consts: Arrays, xs: Arrays) -> ChunkedSteps:
        """The steps of the loop, in chunks of this length."""
        return ChunkedSteps(self.step_vjp, consts, xs, self.length)


def _advance(
    compiled: CompiledRange, consts: PyTree, xs: PyTree, ys: PyTree, carry: PyTree, start: Any, stop: Any
) -> PyTree:
    return compiled.steps(consts, xs).advance(carry, start, stop, ys)


def _record(compiled: CompiledRange, consts: PyTree, xs: PyTree, ys: PyTree, carry: PyTree, start: Any) -> PyTree:
    after, ys, tape = compiled.steps(consts, xs).record(carry, start, compiled.length, ys)
    return after, tape, ys


def _vjp(
    compiled: CompiledRange,
    nonzero: Flags,
    consts: PyTree,
    xs: PyTree,
    tape: PyTree,
    y_bars: PyTree,
    carry: PyTree,
    sums: PyTree,
    rows: PyTree,
    start: Any,
) -> PyTree:
    return compiled.steps(consts, xs).vjp(Grads(carry, sums, rows), tape, y_bars, nonzero, start, compiled.length)


# The outputs `ys` are always donated and written in place; the carry is donated only where the name says so.
_jit_advance = jax.jit(_advance, static_argnums=0, donate_argnums=3)
_jit_advance_donated = jax.jit(_advance, static_argnums=0, donate_argnums=(3, 4))
_jit_record = jax.jit(_record, static_argnums=0, donate_argnums=3)
_jit_vjp = jax.jit(_vjp, static_argnums=(0, 1), donate_argnums=(7, 8))  # sums and rows are updated in place


class JaxBackend:
    """Runs, records and pulls back the steps of one loop."""

    replayable_states: Sequence[ReplayableState] = ()

    def __init__(self, loop: ScanFunction, step_vjp: StepVJP, consts: Arrays, xs: Arrays, *, ready: bool) -> None:
        """With `ready`, every op waits for its results, so that profiles and progress bars see when it ends."""
        self.loop, self.step_vjp, self.consts, self.xs, self.ready = loop, step_vjp, list(consts), list(xs), ready
        avals = loop.step.y_avals
        self.ys: Any = [zeros_like_aval(aval, loop.rows or 0) for aval in avals]
        self.in_first_sweep = True  # only this sweep writes the outputs

    def new_gradients(self, carry_bar: PyTree, y_bars: list[Leaf], nonzero: Flags) -> Gradients:
        """The gradients at the turn, given the cotangents of the `nonzero` outputs; drops the outputs."""
        # The results now belong to the caller; a reference here would keep them alive during the reverse sweep.
        self.ys = []
        _, sums, rows = ChunkedSteps(self.step_vjp, self.consts, self.xs).zero_grads([])
        return Gradients(carry_bar, (y_bars, nonzero), rows, sums)

    def advance(self, state: State, start: int, stop: int) -> State:
        """The carry after steps start..stop-1."""
        if start == stop:
            return state
        compiled = CompiledRange(self.step_vjp, 1)
        # XLA refuses to donate one buffer twice.
        donate = not state.kept and have_distinct_buffers(state.leaves)
        advance = _jit_advance_donated if donate else _jit_advance
        ys = self.ys if self.in_first_sweep else None
        carry, ys = advance(compiled, self.consts, self.xs, ys, list(state.leaves), start, stop)
        if self.in_first_sweep:
            self.ys = ys
        return State(self._wait(tuple(carry)))

    def record(self, state: State, start: int, stop: int) -> tuple[State, Any]:
        """The carry after steps start..stop-1, and the tapes of the parts that the range is compiled in."""
        carry: PyTree = list(state.leaves)
        tape = []
        for at, length in _powers_of_two(start, stop):
            compiled = CompiledRange(self.step_vjp, length)
            ys_in = self.ys if self.in_first_sweep else None
            carry, residuals, ys = _jit_record(compiled, self.consts, self.xs, ys_in, carry, at)
            self.ys = ys if self.in_first_sweep else self.ys
            tape.append((compiled, at, residuals))
        return State(self._wait(tuple(carry))), tape

    def pull_back(self, tape: PyTree, gradients: Gradients) -> Gradients:
        """The gradients at the start of the tape; sums and rows are donated to the compiled call that adds to them."""
        (y_bars, nonzero), carry, sums, rows = gradients.outputs, gradients.carry, gradients.captured, gradients.xs
        gradients = replace(gradients, carry=None)  # so that the cotangent is freed by the first call that uses it
        while tape:
            compiled, at, residuals = tape.pop()
            carry, sums, rows = _jit_vjp(
                compiled, nonzero, self.consts, self.xs, residuals, y_bars, list(carry), sums, rows, at
            )
            # Free the residuals before the next part is pulled back: the plan does not include those of two parts at
            # once.
            del residuals
        return replace(gradients, carry=self._wait(carry), captured=sums, xs=rows)

    def copy(self, state: State) -> State:
        """The state, which is no longer donated."""
        return State(state.leaves, kept=True)

    def seal(self, state: State) -> None:
        """Do nothing: kept states cannot be written into, since JAX arrays are immutable."""

    def size(self, value: PyTree) -> int:
        """Bytes of a state, a tape or a cotangent."""
        return sum(nbytes(leaf) for leaf in jax.tree.leaves(value) if hasattr(leaf, "dtype"))

    def tape_listing(self) -> StepListing:
        """A listing of the residuals of a step."""
        return StepListing(self.step_vjp)

    def persistent_bytes(self, gradients: Gradients | None) -> dict[str, int]:
        """Bytes that are live during the whole loop: inputs, captured values, outputs, gradients."""
        arrays_by_name = {
            "inputs": self.xs,
            "captured": self.consts,
            "outputs": self.ys,
            "gradients": [] if gradients is None else [*gradients.captured, *gradients.xs],
        }
        return {name: size for name, values in arrays_by_name.items() if (size := self.size(values))}

    def failed_at(self) -> tuple[int, int]:
        """Step 0 and no bytes: a compiled call does not say in which of its steps it failed."""
        return 0, 0

    def meter(self) -> Meter | None:
        """None: XLA's allocations inside a compiled call cannot be observed."""
        return None

    def _wait(self, value: PyTree) -> PyTree:
        return jax.block_until_ready(value) if self.ready else value


def _powers_of_two(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The range as parts (start, length) of powers of two, longest first, so that few lengths are compiled."""
    while start < stop:
        length = 1 << ((stop - start).bit_length() - 1)
        yield start, length
        start += length
