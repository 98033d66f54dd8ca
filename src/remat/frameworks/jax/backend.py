"""The verbs of JAX, for loops that Python drives: each is one compiled call, or a few for ranges of odd lengths.

Arrays do not change, so a kept state is no copy; a state that is not kept is donated to the call that goes on from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from remat.execute.gradients import Gradients
from remat.execute.rng_state import ReplayableState
from remat.frameworks.jax.avals import Flags, have_distinct_buffers, nbytes, zeros_like_aval
from remat.frameworks.jax.chunked_steps import ChunkedSteps, Grads
from remat.frameworks.jax.differentiable import Arrays, CacheKeyed
from remat.frameworks.jax.residuals import StepVJP
from remat.frameworks.jax.scan_function import ScanFunction
from remat.memory_meter import Meter

__all__ = ["JaxBackend", "State"]


class State(NamedTuple):
    """The leaves of a carry; `kept` ones are not donated."""

    leaves: tuple[Any, ...]
    kept: bool = False


class CompiledRange(CacheKeyed):
    """So many steps that are compiled as one."""

    def __init__(self, step_vjp: StepVJP, length: int) -> None:
        self.step_vjp, self.length = step_vjp, length
        self.key = step_vjp, length

    def units(self, consts: Arrays, xs: Arrays) -> ChunkedSteps:
        """The steps as units of this length."""
        return ChunkedSteps(self.step_vjp, consts, xs, self.length)


def _advance(piece: CompiledRange, consts: Any, xs: Any, ys: Any, carry: Any, start: Any, stop: Any) -> Any:
    return piece.units(consts, xs).advance(carry, start, stop, ys)


def _record(piece: CompiledRange, consts: Any, xs: Any, ys: Any, carry: Any, start: Any) -> Any:
    after, ys, tape = piece.units(consts, xs).record(carry, start, piece.length, ys)
    return after, tape, ys


def _pull(
    piece: CompiledRange,
    given: Flags,
    consts: Any,
    xs: Any,
    tape: Any,
    bars: Any,
    carry: Any,
    sums: Any,
    rows: Any,
    start: Any,
) -> Any:
    return piece.units(consts, xs).vjp(Grads(carry, sums, rows), tape, bars, given, start, piece.length)


_advancing = jax.jit(_advance, static_argnums=0, donate_argnums=3)
_advancing_on = jax.jit(_advance, static_argnums=0, donate_argnums=(3, 4))
_recording = jax.jit(_record, static_argnums=0, donate_argnums=3)
_pulling = jax.jit(_pull, static_argnums=(0, 1), donate_argnums=(7, 8))


class JaxBackend:
    """Runs, records and pulls back the steps of one loop."""

    replayable_states: Sequence[ReplayableState] = ()

    def __init__(self, loop: ScanFunction, step_vjp: StepVJP, consts: Arrays, xs: Arrays, *, ready: bool) -> None:
        self.loop, self.step_vjp, self.consts, self.xs, self.ready = loop, step_vjp, list(consts), list(xs), ready
        avals = loop.step.y_avals
        self.ys: Any = [zeros_like_aval(aval, loop.rows or 0) for aval in avals]
        self.first = True  # whether the first sweep is run, which puts out

    def new_gradients(self, carry_bar: Any, y_bars: list[Any], nonzero: Flags) -> Gradients:
        """The gradients at the turn, with cotangents of the outputs that are `nonzero`; the outputs are let go."""
        self.ys = []
        _, sums, rows = ChunkedSteps(self.step_vjp, self.consts, self.xs).zero_grads([])
        return Gradients(carry_bar, (y_bars, nonzero), rows, sums)

    def advance(self, state: State, start: int, stop: int) -> State:
        """The carry after steps start..stop-1."""
        if start == stop:
            return state
        piece, run = (
            CompiledRange(self.step_vjp, 1),
            _advancing if state.kept or not have_distinct_buffers(state.leaves) else _advancing_on,
        )
        ys = self.ys if self.first else None
        carry, ys = run(piece, self.consts, self.xs, ys, list(state.leaves), start, stop)
        if self.first:
            self.ys = ys
        return State(self._done(tuple(carry)))

    def record(self, state: State, start: int, stop: int) -> tuple[State, Any]:
        """The carry after steps start..stop-1, and the tapes of pieces of that range."""
        carry: Any = list(state.leaves)
        tape = []
        for at, length in _powers_of_two(start, stop):
            piece = CompiledRange(self.step_vjp, length)
            carry, per_step, ys = _recording(piece, self.consts, self.xs, self.ys if self.first else None, carry, at)
            self.ys = ys if self.first else self.ys
            tape.append((piece, at, per_step))
        return State(self._done(tuple(carry))), tape

    def pull_back(self, tape: Any, gradients: Gradients) -> Gradients:
        """The gradients at the start of the tape; sums and rows are donated to the compiled call that adds to them."""
        (y_bars, nonzero), carry, sums, rows = gradients.outputs, gradients.carry, gradients.captured, gradients.xs
        while tape:
            piece, at, per_step = tape.pop()
            carry, sums, rows = _pulling(
                piece, nonzero, self.consts, self.xs, per_step, y_bars, list(carry), sums, rows, at
            )
            del per_step
        return replace(gradients, carry=self._done(carry), captured=sums, xs=rows)

    def copy(self, state: State) -> State:
        """The state, which is not donated from now on."""
        return State(state.leaves, kept=True)

    def size(self, value: Any) -> int:
        """Bytes of a state, a tape or a cotangent."""
        return sum(nbytes(leaf) for leaf in jax.tree.leaves(value) if hasattr(leaf, "dtype"))

    def persistent_bytes(self, gradients: Gradients | None) -> dict[str, int]:
        """Bytes of what is live throughout."""
        parts = {
            "inputs": self.xs,
            "captured": self.consts,
            "outputs": self.ys,
            "gradients": [] if gradients is None else [*gradients.captured, *gradients.xs],
        }
        return {name: size for name, values in parts.items() if (size := self.size(values))}

    def failed_at(self) -> tuple[int, int]:
        """Nothing: an op is one call, done or not."""
        return 0, 0

    def meter(self) -> Meter | None:
        """None: XLA allocates as it likes."""
        return None

    def _done(self, value: Any) -> Any:
        return jax.block_until_ready(value) if self.ready else value


def _powers_of_two(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Pieces of powers of two, the longest first: few are compiled, whatever the lengths of ranges are."""
    while start < stop:
        length = 1 << ((stop - start).bit_length() - 1)
        yield start, length
        start += length
