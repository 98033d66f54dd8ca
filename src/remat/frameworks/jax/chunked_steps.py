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

from remat.frameworks.jax.avals import Flags, blank, picked
from remat.frameworks.jax.differentiable import Arrays
from remat.frameworks.jax.residuals import Tape, Taped

__all__ = ["Pulled", "Units", "unrolled"]


def unrolled(length: int) -> int:
    """How many steps of a unit are one turn of its loop: a GPU takes its time for a turn, a CPU does not.

    They divide the length: for a rest, XLA would hold all tapes twice.
    """
    return 1 if jax.default_backend() == "cpu" else next(count for count in (4, 3, 2, 1) if length % count == 0)


class Pulled(NamedTuple):
    """What is gathered while units are pulled back: the cotangent of a carry, sums, and rows."""

    carry: list[Any]
    consts: list[Any]
    xs: list[Any]


class Units:
    """All units of a loop, for given constants and inputs. `length` steps are a unit, `head` steps are the first."""

    def __init__(self, taped: Taped, consts: Arrays, xs: Arrays, length: int = 1, head: int = 0) -> None:
        self.taped, self.step, self.consts, self.xs = taped, taped.run, list(consts), list(xs)
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

    def pass_over(self, carry: Arrays, i: Any) -> list[Any]:
        """The carry after unit i."""
        if self.head:
            return self.advance(carry, i, i + 1)[0]
        return self.run(carry, self.start(i), self.length, None)[0]

    def record(
        self, carry: Arrays, start: Any, length: int, ys: Arrays | None = None
    ) -> tuple[list[Any], list[Any], Tape]:
        """The carry after so many steps, the outputs with theirs written into them, and their tape."""

        def step(held: Any, i: Any) -> Any:
            carry, y, tape = self.taped.record(self.consts, held[0], _rows(self.xs, i))
            return (carry, held[1] if ys is None else _put(held[1], y, i), tape.common), tape.own

        common = [blank(look) for look in self.taped.common_looks]
        held, own = _steps(step, (list(carry), list(ys or ()), common), None, start, length)
        return held[0], held[1], Tape(own, held[2])

    def pull(self, pulled: Pulled, tape: Tape, y_bars: Arrays, given: Flags, start: Any, length: int) -> Pulled:
        """What is gathered once a recorded unit is pulled back too; `y_bars` are of outputs that are given some."""
        looks = picked(self.taped.flow.ys, self.step.outs[self.step.carry :])

        def back(held: Any, at: Any) -> Any:
            i, own = at
            bars = iter(_rows(y_bars, i))
            y_bar = [next(bars) if flag else blank(look) for flag, look in zip(given, looks, strict=True)]
            x = _rows(self.xs, i)
            consts, carry, x_bar = self.taped.pull(Tape(own, tape.common), self.consts, x, held.carry, y_bar)
            sums = [total + part for total, part in zip(held.consts, consts, strict=True)]
            return Pulled(carry, sums, _put(held.xs, x_bar, i)), None

        found: Pulled = _steps(back, pulled, tape.own, start, length, reverse=True)[0]
        return found

    def nothing_pulled(self, carry: list[Any]) -> Pulled:
        """What is gathered before the first pullback: the cotangent of the last carry, and zeros."""
        flow = self.taped.flow
        consts = [blank(const) for const in picked(flow.consts, self.consts)]
        return Pulled(carry, consts, [blank(x) for x in picked(flow.xs, self.xs)])


def _steps(step: Any, held: Any, given: Any, start: Any, length: int, *, reverse: bool = False) -> Any:
    """A step for each of so many numbers from `start` on, with a row of what is given; a single one has no rows."""
    if length == 1:
        return step(held, start if given is None else (start, given))
    numbers = start + jnp.arange(length, dtype=jnp.int32)
    rows = numbers if given is None else (numbers, given)
    return lax.scan(step, held, rows, length=length, reverse=reverse, unroll=unrolled(length))


def _rows(arrays: Arrays, i: Any) -> list[Any]:
    return [lax.dynamic_index_in_dim(array, i, keepdims=False) for array in arrays]


def _put(arrays: Arrays, rows: Arrays, i: Any) -> list[Any]:
    return [lax.dynamic_update_index_in_dim(array, row, i, 0) for array, row in zip(arrays, rows, strict=True)]
