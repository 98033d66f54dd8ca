"""The reverse sweep on a device: from a stack of kept states to the cotangent of the first state.

In: the stack of kept states, and chunks that can be advanced over and pulled back. Out: the accumulated cotangents.

This is Revolve (Griewank & Walther 2000, "Algorithm 799: Revolve") without recursion and with data-dependent bounds, so
that one compiled program serves loops of any length. With s free slots, a range of n chunks that begins at a kept state
is split where `schedule.revolve.split` splits it: with β(s, r) = C(s+r, s) and r the least integer with β(s, r) ≥ n,
the next state is kept after

    min(β(s, r-1), n - β(s-1, r-1))

chunks. This is optimal because β(s, r) = β(s, r-1) + β(s-1, r): the left part is reversed with s slots and at most r-1
advances over each chunk, the right part with s-1 slots and at most r. The right part is reversed first, so the states
to return to always form a stack. The sweep repeats: split until the range above the top of the stack is easy, reverse
that range, pop. A range is easy if all of its states fit into the free slots: they are written in one pass, and their
chunks pulled back one after another. With one slot none fits, and each chunk is reached from the same state again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from remat.frameworks.jax.avals import (
    Array,
    lax_fori_loop,
    lax_while_loop,
)
from remat.frameworks.jax.loops.chunked_steps import ChunkedSteps
from remat.frameworks.jax.transforms.differentiable import Arrays
from remat.pytree import PyTree

__all__ = ["CheckpointStack", "reverse_sweep"]

SHORT_ROW = 64  # rows of binomials up to this length are compared entry by entry, in fewer operations than a bisection


class CheckpointStack(NamedTuple):
    """Kept states by level: `at` says before which chunks they are, `states` has their leaves; `depth` are in use."""

    at: Array
    depth: Array
    states: list[Array]

    @classmethod
    def of(cls, at: Array, depth: Array, carry: Arrays, size: int) -> "CheckpointStack":
        """A stack of at most `size` states, with `carry` as the lowest."""
        return cls(at, depth, [jnp.broadcast_to(leaf[None], (size, *leaf.shape)) for leaf in carry])

    def fetch(self, level: ArrayLike) -> list[Array]:
        """The state of a level."""
        return [lax.dynamic_index_in_dim(leaf, level, keepdims=False) for leaf in self.states]

    def put(self, level: Array, carry: Arrays) -> "CheckpointStack":
        """The stack with the state of a level replaced."""
        pairs = zip(self.states, carry, strict=True)
        states = [lax.dynamic_update_index_in_dim(leaves, leaf, level, 0) for leaves, leaf in pairs]
        return CheckpointStack(self.at, self.depth, states)

    def push(self, position: Array, carry: Arrays) -> "CheckpointStack":
        """The stack with a state pushed on top."""
        at = lax.dynamic_update_index_in_dim(self.at, position, self.depth, 0)
        return CheckpointStack(at, self.depth + 1, self.put(self.depth, carry).states)


class _Sweep(NamedTuple):
    """The constants of a reverse sweep."""

    chunks: ChunkedSteps
    slots: Array
    binomial_table: Array  # β(s, r) in row s and column r
    pull_one: Callable[[Arrays, Any, Any], Any]
    first: int


class _Remaining(NamedTuple):
    """The chunks above the top of the stack, which are reversed next."""

    start: Array
    length: Array
    free: Array  # slots for their states, including that of the first chunk

    @property
    def fits(self) -> Array:
        """Whether all of their states fit into the free slots; the last needs none, since it is pulled back at once."""
        return self.length <= self.free + 1

    @property
    def one_slot(self) -> Array:
        """Whether there is no slot besides that of the state on top of the stack."""
        return self.free == 1


def reverse_sweep(
    stack: CheckpointStack,
    end: Array,
    slots: Array,
    binomial_table: Array,
    chunks: ChunkedSteps,
    pull_one: Callable[[Arrays, Any, Any], Any],
    grads: PyTree,
    first: int = 0,
) -> tuple[Any, CheckpointStack]:
    """The cotangents after chunks end-1..first are pulled back by `pull_one(carry, i, grads)`, and the stack."""
    sweep = _Sweep(chunks, slots, binomial_table, pull_one, first)
    # A table from the host has no mesh, but what is written into it has one where meshes are part of types. Adding
    # zeros on the device gives the table one too.
    stack = stack._replace(at=stack.at + jnp.zeros(stack.at.shape, stack.at.dtype))

    def segment(loop_carry: PyTree) -> PyTree:
        return _reverse_segment(sweep, *loop_carry)

    stack, _, grads = lax_while_loop(lambda loop_carry: loop_carry[1] > first, segment, (stack, end, grads))
    return grads, stack


def _remaining(sweep: _Sweep, stack: CheckpointStack, end: Array) -> _Remaining:
    start = lax.dynamic_index_in_dim(stack.at, stack.depth - 1, keepdims=False)
    return _Remaining(start, end - start, sweep.slots - (stack.depth - 1))


def _split_and_keep(sweep: _Sweep, stack: CheckpointStack, end: Array) -> CheckpointStack:
    """Advance to the state that Revolve keeps next, and push it."""
    start, length, free = _remaining(sweep, stack, end)
    times = _repetition(sweep.binomial_table, free, length)
    left_most = _entry(sweep.binomial_table, free, times - 1)
    right_least = _entry(sweep.binomial_table, free - 1, times - 1)
    position = start + jnp.minimum(left_most, length - right_least)
    return stack.push(position, sweep.chunks.advance(stack.fetch(stack.depth - 1), start, position)[0])


def _entry(table: Array, row: Array, column: Array) -> Array:
    entry: Array = lax.dynamic_slice(table, (row, column), (1, 1))[0, 0]
    return entry


def _repetition(table: Array, slots: Array, length: Array) -> Array:
    """The least r with β(slots, r) ≥ length; beyond the end of the table, splits are legal but not optimal."""
    width = table.shape[1]
    if width <= SHORT_ROW:
        row = lax.dynamic_index_in_dim(table, slots, keepdims=False)
        return jnp.sum(row < length, dtype=jnp.int32)
    # Use bisection, since a comparison with the whole row would allocate an array as long as the row.
    low, high = jnp.int32(0), jnp.int32(width)
    for _ in range(width.bit_length()):
        middle = (low + high) // 2
        below = _entry(table, slots, middle) < length
        low, high = jnp.where(below, middle + 1, low), jnp.where(below, high, middle)
    found: Array = low
    return found


def _reverse_segment(
    sweep: _Sweep, stack: CheckpointStack, end: Array, grads: PyTree
) -> tuple[CheckpointStack, Any, Any]:
    """Split until the range above the stack is easy and pull it back; the stack, the new end and the cotangents."""

    def is_hard(loop_carry: PyTree) -> PyTree:
        return ~(_remaining(sweep, *loop_carry).fits | _remaining(sweep, *loop_carry).one_slot)

    stack, _ = lax_while_loop(
        is_hard, lambda loop_carry: (_split_and_keep(sweep, *loop_carry), loop_carry[1]), (stack, end)
    )
    remaining, top = _remaining(sweep, stack, end), stack.depth - 1
    start, length, fits = remaining.start, remaining.length, remaining.fits
    # If the states do not fit, pull back only the last chunk; the next segment starts from the same state.
    count = jnp.minimum(jnp.where(fits, length, 1), end - sweep.first)

    def level(j: Array) -> Array:
        """The row of the state before chunk start + j: its level, or the row after the last if it has no slot."""
        return jnp.where(fits | (j == 0), top + j, sweep.slots)

    def advance_one(j: Array, loop_carry: PyTree) -> PyTree:
        carry, stack = loop_carry
        carry = sweep.chunks.advance_one(carry, start + j)
        return carry, stack.put(level(j + 1), carry)

    def pull_one(q: Array, grads: PyTree) -> PyTree:
        j = length - 1 - q
        return sweep.pull_one(stack.fetch(level(j)), start + j, grads)

    _, stack = lax_fori_loop(0, length - 1, advance_one, (stack.fetch(top), stack))
    grads = lax_fori_loop(0, count, pull_one, grads)
    return CheckpointStack(stack.at, jnp.where(fits, top, stack.depth), stack.states), end - count, grads
