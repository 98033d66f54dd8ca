"""The units of a loop on a device: one step, or k steps that are recorded and pulled back as one.

In: a step that can be recorded, what it closes over, and the inputs of all steps. Out: units that are advanced over,
recorded and pulled back by operations that JAX can trace. A loop whose length is no multiple of k has a shorter unit
first, the head. Sums go on from step to step in the order in which the plain loop would have added them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from remat.frameworks.jax.avals import Flags, select, zeros_like_aval
from remat.frameworks.jax.differentiable import Arrays
from remat.frameworks.jax.residuals import StepVJP, Tape

__all__ = ["ChunkedSteps", "Grads", "unroll_factor"]


def unroll_factor(length: int) -> int:
    """How many steps of a unit are one turn of its loop: a GPU takes its time for a turn, a CPU does not.

    They divide the length: for a rest, XLA would hold all tapes twice.
    """
    return 1 if jax.default_backend() == "cpu" else next(count for count in (4, 3, 2, 1) if length % count == 0)


class Grads(NamedTuple):
    """What is gathered while units are pulled back: the cotangent of a carry, sums, and rows."""

    carry: list[Any]
    consts: list[Any]
    xs: list[Any]


class ChunkedSteps:
    """All units of a loop, for given constants and inputs. `length` steps are a unit, `head` steps are the first."""

    def __init__(self, step_vjp: StepVJP, consts: Arrays, xs: Arrays, length: int = 1, head: int = 0) -> None:
        self.step_vjp, self.step, self.consts, self.xs = step_vjp, step_vjp.run, list(consts), list(xs)
        self.length, self.head = length, head

    def start(self, i: Any) -> Any:
        """The first step of unit i, which is not the head."""
        return self.head + (i - 1) * self.length if self.head else i * self.length

    def run(self, carry: Arrays, start: Any, length: int, ys: Arrays | None) -> tuple[list[Any], list[Any]]:
        """The carry after so many steps; their outputs are written into `ys`, if they are wanted."""

        def step(held: Any, i: Any) -> Any:
            carry, y = self.step(self.consts, held[0], _rows(self.xs, i))
            return (carry, held[1] if ys is None else _put(held[1], y, i)), None

        found: tuple[list[Any], list[Any]] = _steps(step, (list(carry), list(ys or ())), None, start, length)[0]
        return found

    def advance(self, carry: Arrays, start: Any, stop: Any, ys: Arrays | None = None) -> tuple[list[Any], list[Any]]:
        """The carry after the units start..stop-1; their outputs are written into `ys`, if they are wanted."""

        def over(at: Callable[[Any], Any], length: int) -> Callable[[Any, Any], Any]:
            return lambda i, held: self.run(held[0], at(i), length, None if ys is None else held[1])

        held = list(carry), list(ys or ())
        if self.head:
            held = lax.fori_loop(0, ((start == 0) & (stop > 0)).astype(jnp.int32), over(lambda _: 0, self.head), held)
            start = jnp.maximum(start, 1)
        found: tuple[list[Any], list[Any]] = lax.fori_loop(start, stop, over(self.start, self.length), held)
        return found

    def advance_one(self, carry: Arrays, i: Any) -> list[Any]:
        """The carry after unit i."""
        if self.head:
            return self.advance(carry, i, i + 1)[0]
        return self.run(carry, self.start(i), self.length, None)[0]

    def record(
        self, carry: Arrays, start: Any, length: int, ys: Arrays | None = None
    ) -> tuple[list[Any], list[Any], Tape]:
        """The carry after so many steps, the outputs with theirs written into them, and their tape."""

        def step(held: Any, i: Any) -> Any:
            carry, y, tape = self.step_vjp.record(self.consts, held[0], _rows(self.xs, i))
            return (carry, held[1] if ys is None else _put(held[1], y, i), tape.shared), tape.per_step

        shared = [zeros_like_aval(aval) for aval in self.step_vjp.shared_avals]
        held, per_step = _steps(step, (list(carry), list(ys or ()), shared), None, start, length)
        return held[0], held[1], Tape(per_step, held[2])

    def vjp(self, pulled: Grads, tape: Tape, y_bars: Arrays, given: Flags, start: Any, length: int) -> Grads:
        """What is gathered once a recorded unit is pulled back too; `y_bars` are of outputs that are given some."""
        avals = select(self.step_vjp.activity.ys, self.step.outs[self.step.carry :])

        def back(held: Any, at: Any) -> Any:
            i, per_step = at
            bars = iter(_rows(y_bars, i))
            y_bar = [next(bars) if flag else zeros_like_aval(aval) for flag, aval in zip(given, avals, strict=True)]
            x = _rows(self.xs, i)
            consts, carry, x_bar = self.step_vjp.vjp(Tape(per_step, tape.shared), self.consts, x, held.carry, y_bar)
            sums = [total + part for total, part in zip(held.consts, consts, strict=True)]
            return Grads(carry, sums, _put(held.xs, x_bar, i)), None

        found: Grads = _steps(back, pulled, tape.per_step, start, length, reverse=True)[0]
        return found

    def zero_grads(self, carry: list[Any]) -> Grads:
        """What is gathered before the first pullback: the cotangent of the last carry, and zeros."""
        activity = self.step_vjp.activity
        consts = [zeros_like_aval(const) for const in select(activity.consts, self.consts)]
        return Grads(carry, consts, [zeros_like_aval(x) for x in select(activity.xs, self.xs)])


def _steps(step: Any, held: Any, given: Any, start: Any, length: int, *, reverse: bool = False) -> Any:
    """A step for each of so many numbers from `start` on, with a row of what is given; a single one has no rows."""
    if length == 1:
        return step(held, start if given is None else (start, given))
    numbers = start + jnp.arange(length, dtype=jnp.int32)
    rows = numbers if given is None else (numbers, given)
    return lax.scan(step, held, rows, length=length, reverse=reverse, unroll=unroll_factor(length))


def _rows(arrays: Arrays, i: Any) -> list[Any]:
    return [lax.dynamic_index_in_dim(array, i, keepdims=False) for array in arrays]


def _put(arrays: Arrays, rows: Arrays, i: Any) -> list[Any]:
    return [lax.dynamic_update_index_in_dim(array, row, i, 0) for array, row in zip(arrays, rows, strict=True)]
