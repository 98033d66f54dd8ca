"""Chunks of a loop on a device: one step, or k steps that are recorded and pulled back together.

In: a step with its VJP, what it closes over, and the inputs of all steps. Out: chunks that are advanced over, recorded
and pulled back by operations that JAX can trace. A loop whose length is not a multiple of k has a shorter first chunk.
Gradients are summed step by step in the order of the plain loop, so that they agree with it bitwise.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from remat.frameworks.jax.avals import (
    Array,
    Flags,
    behind_barrier,
    lax_fori_loop,
    lax_scan,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.loops.residuals import RecomputedStep, Residuals, StepVJP
from remat.frameworks.jax.transforms.differentiable import Arrays
from remat.pytree import PyTree

__all__ = ["ChunkedSteps", "Grads", "read_rows", "unroll_factor", "write_rows"]


def unroll_factor(length: int) -> int:
    """How many steps of a chunk form one iteration of its loop.

    On a GPU each iteration waits for the host; on a CPU it costs nothing. The factor divides the length: for a
    remainder, XLA would hold the residuals of the whole chunk twice.
    """
    return 1 if jax.default_backend() == "cpu" else next(count for count in (4, 3, 2, 1) if length % count == 0)


class Grads(NamedTuple):
    """Cotangents accumulated while chunks are pulled back: of the carry, sums for constants, and rows for inputs."""

    carry: list[Array]
    consts: list[Array]
    xs: list[Array]


class ChunkedSteps:
    """The steps of a loop in chunks of `chunk` steps; the first chunk has `first_chunk` steps unless that is 0."""

    def __init__(
        self, step_vjp: StepVJP | RecomputedStep, consts: Arrays, xs: Arrays, chunk: int = 1, first_chunk: int = 0
    ) -> None:
        self.step_vjp, self.step, self.consts, self.xs = step_vjp, step_vjp.forward, list(consts), list(xs)
        self.chunk, self.first_chunk = chunk, first_chunk

    def first_step(self, i: Array) -> Array:
        """The first step of chunk i, which must not be a shorter first chunk."""
        return self.first_chunk + (i - 1) * self.chunk if self.first_chunk else i * self.chunk

    def run(self, carry: Arrays, start: ArrayLike, length: int, ys: Arrays | None) -> tuple[list[Array], list[Array]]:
        """The carry after `length` steps, and `ys` with their outputs written into it, unless it is None."""

        def step(loop_carry: PyTree, i: Array) -> PyTree:
            carry, ys_so_far = loop_carry
            carry, y = self.step(self.consts, carry, read_rows(self.xs, i))
            return (carry, ys_so_far if ys is None else write_rows(ys_so_far, y, i)), None

        results: tuple[list[Array], list[Array]]
        results, _ = _loop(step, (list(carry), list(ys or ())), None, start, length)
        return results

    def advance(
        self, carry: Arrays, start: ArrayLike, stop: Array, ys: Arrays | None = None
    ) -> tuple[list[Array], list[Array]]:
        """The carry after chunks start..stop-1, and `ys` with their outputs written into it, unless it is None."""

        def over(first_step: Callable[[PyTree], PyTree], length: int) -> Callable[[PyTree, PyTree], PyTree]:
            return lambda i, results: self.run(results[0], first_step(i), length, None if ys is None else results[1])

        results = list(carry), list(ys or ())
        if self.first_chunk:  # another length needs another program: a loop of zero or one iterations runs it
            times = ((start == 0) & (stop > 0)).astype(jnp.int32)
            results = lax_fori_loop(0, times, over(lambda _: 0, self.first_chunk), results)
            start = jnp.maximum(start, 1)
        after: tuple[list[Array], list[Array]] = lax_fori_loop(start, stop, over(self.first_step, self.chunk), results)
        return after

    def advance_one(self, carry: Arrays, i: Array) -> list[Array]:
        """The carry after chunk i."""
        if self.first_chunk:
            return self.advance(carry, i, i + 1)[0]
        return self.run(carry, self.first_step(i), self.chunk, None)[0]

    def record(
        self, carry: Arrays, start: ArrayLike, length: int, ys: Arrays | None = None
    ) -> tuple[list[Array], list[Array], Residuals]:
        """The carry after `length` steps, `ys` with their outputs written into it, and their residuals."""

        def step(loop_carry: PyTree, i: Array) -> PyTree:
            carry, ys_so_far, _ = loop_carry
            carry, y, residuals = self.step_vjp.record(self.consts, carry, read_rows(self.xs, i))
            ys_so_far = ys_so_far if ys is None else write_rows(ys_so_far, y, i)
            return (carry, ys_so_far, residuals.shared), residuals.per_step

        # Shared residuals are the same after each step; as part of the carry they are not stacked.
        shared = [zeros_like_aval(aval) for aval in self.step_vjp.shared_avals]
        (after, ys_after, shared), per_step = _loop(step, (list(carry), list(ys or ()), shared), None, start, length)
        if length == 1:
            # Compute them before the pullback, as a stack of them would be. If XLA fused one into the pullback, such as
            # a power that is broadcast, it would recompute it for each element that reads it.
            per_step = behind_barrier(per_step)
        return after, ys_after, Residuals(per_step, shared)

    def vjp(
        self, grads: Grads, residuals: Residuals, y_bars: Arrays, nonzero: Flags, start: ArrayLike, length: int
    ) -> Grads:
        """The cotangents after the recorded steps are pulled back.

        `nonzero` says which active outputs have cotangents in `y_bars`, which has a row for each step of the loop.
        """
        avals = select(self.step_vjp.activity.ys, self.step_vjp.y_avals)

        def step_back(grads: Grads, row: PyTree) -> PyTree:
            i, per_step = row
            bars = iter(
                read_rows(y_bars, i)
            )  # by index: as rows of the scan, the chunk's part of all rows would be a copy
            y_bar = [next(bars) if flag else zeros_like_aval(aval) for flag, aval in zip(nonzero, avals, strict=True)]
            step_residuals = Residuals(per_step, residuals.shared)
            consts_bar, carry_bar, x_bar = self.step_vjp.vjp(
                step_residuals, self.consts, read_rows(self.xs, i), grads.carry, y_bar
            )
            sums = [total + bar for total, bar in zip(grads.consts, consts_bar, strict=True)]
            return Grads(carry_bar, sums, write_rows(grads.xs, x_bar, i)), None

        grads, _ = _loop(step_back, grads, residuals.per_step, start, length, reverse=True)
        return grads

    def zero_grads(self, carry_bar: list[Array]) -> Grads:
        """The cotangents before the first pullback: that of the last carry, and zeros."""
        activity = self.step_vjp.activity
        consts = [zeros_like_aval(const) for const in select(activity.consts, self.consts)]
        return Grads(carry_bar, consts, [zeros_like_aval(x) for x in select(activity.xs, self.xs)])


def _loop(step: Any, carry: PyTree, rows: PyTree, start: ArrayLike, length: int, *, reverse: bool = False) -> PyTree:
    """lax.scan of a step over the numbers start..start+length-1, paired with rows if there are any.

    A single step runs without a loop: it takes the rows as they are, and its output is not stacked.
    """
    if length == 1:  # chunks of one step are the usual case, and must not nest a loop in the loop over chunks
        return step(carry, start if rows is None else (start, rows))
    numbers = start + jnp.arange(length, dtype=jnp.int32)
    xs = numbers if rows is None else (numbers, rows)
    return lax_scan(step, carry, xs, length=length, reverse=reverse, unroll=unroll_factor(length))


def read_rows(arrays: Arrays, i: ArrayLike) -> list[Array]:
    """Row i of each array."""
    return [lax.dynamic_index_in_dim(array, i, keepdims=False) for array in arrays]


def write_rows(arrays: Arrays, rows: Arrays, i: Array) -> list[Array]:
    """The arrays with row i replaced."""
    return [lax.dynamic_update_index_in_dim(array, row, i, 0) for array, row in zip(arrays, rows, strict=True)]
