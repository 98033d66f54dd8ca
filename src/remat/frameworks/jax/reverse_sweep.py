"""The reverse sweep on a device: from kept states on a stack, to the cotangent of the first one.

In: the stack, and units that can be advanced over and pulled back. Out: what was gathered. From the last kept state it
is advanced to further states to keep, as the binomial plan splits (`planners.recurrence.revolve`), until all states of
what is left fit: these are then kept one after another, and their units pulled back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from remat.frameworks.jax.chunked_steps import ChunkedSteps
from remat.frameworks.jax.differentiable import Arrays

__all__ = ["CheckpointStack", "reverse_sweep"]


class CheckpointStack(NamedTuple):
    """Kept states: `at` are their numbers and `states` their leaves, by level; `depth` of them are held."""

    at: Any
    depth: Any
    states: list[Any]

    @classmethod
    def of(cls, at: Any, depth: Any, carry: Arrays, size: int) -> "CheckpointStack":
        """A stack for so many states, the first of which is that carry."""
        return cls(at, depth, [jnp.broadcast_to(leaf[None], (size, *leaf.shape)) for leaf in carry])

    def fetch(self, level: Any) -> list[Any]:
        """The state of a level."""
        return [lax.dynamic_index_in_dim(leaf, level, keepdims=False) for leaf in self.states]

    def put(self, level: Any, carry: Arrays) -> "CheckpointStack":
        """The stack with another state on a level."""
        pairs = zip(self.states, carry, strict=True)
        states = [lax.dynamic_update_index_in_dim(leaf, part, level, 0) for leaf, part in pairs]
        return CheckpointStack(self.at, self.depth, states)

    def push(self, place: Any, carry: Arrays) -> "CheckpointStack":
        """The stack with a state on top."""
        at = lax.dynamic_update_index_in_dim(self.at, place, self.depth, 0)
        return CheckpointStack(at, self.depth + 1, self.put(self.depth, carry).states)


class _Remaining(NamedTuple):
    """What lies above the last kept state."""

    start: Any  # where that is
    length: Any  # units from there
    free: Any  # slots for them, its own included

    @property
    def fits(self) -> Any:
        """Whether all states of it can be kept: but for the last one, which is only passed."""
        return self.length <= self.free + 1

    @property
    def one_slot(self) -> Any:
        """Whether no state of it can be kept."""
        return self.free == 1


def reverse_sweep(
    stack: CheckpointStack,
    end: Any,
    slots: Any,
    binomial_table: Any,
    units: ChunkedSteps,
    pull_one: Callable[[Arrays, Any, Any], Any],
    gathered: Any,
    least: int = 0,
) -> tuple[Any, CheckpointStack]:
    """What is gathered when all units least..end-1 are pulled back."""

    def ahead(stack: CheckpointStack, end: Any) -> _Remaining:
        start = lax.dynamic_index_in_dim(stack.at, stack.depth - 1, keepdims=False)
        return _Remaining(start, end - start, slots - (stack.depth - 1))

    # A table from the host has no mesh; where meshes are part of types, all that is written to it has one.
    stack = stack._replace(at=stack.at + jnp.zeros(stack.at.shape, stack.at.dtype))

    def split_and_keep(held: Any) -> Any:
        """Advance to the next state to keep, where the binomial plan splits."""
        stack, end = held
        start, length, free = ahead(stack, end)
        row = lax.dynamic_index_in_dim(binomial_table, free, keepdims=False)
        times = jnp.sum(row < length, dtype=jnp.int32)  # the least r with β(free, r) ≥ length, or the last there is
        less = lax.dynamic_slice(binomial_table, (free, times - 1), (1, 1))[0, 0]
        right = lax.dynamic_slice(binomial_table, (free - 1, times - 1), (1, 1))[0, 0]
        place = start + jnp.minimum(less, length - right)
        return stack.push(place, units.advance(stack.fetch(stack.depth - 1), start, place)[0]), end

    def reverse_segment(held: Any) -> Any:
        stack, end, gathered = held
        stack, _ = lax.while_loop(
            lambda held: ~(ahead(*held).fits | ahead(*held).one_slot), split_and_keep, (stack, end)
        )
        found, top = ahead(stack, end), stack.depth - 1
        start, length, fits = found.start, found.length, found.fits
        count = jnp.minimum(jnp.where(fits, length, 1), end - least)  # units that are pulled back

        def level(j: Any) -> Any:
            """Where the state before unit start + j is: on the stack if all fit, else in the place that is not kept."""
            return jnp.where(fits | (j == 0), top + j, slots)

        def advance_one(j: Any, held: Any) -> Any:
            carry, stack = held
            carry = units.advance_one(carry, start + j)
            return carry, stack.put(level(j + 1), carry)

        def pull_back_one(q: Any, gathered: Any) -> Any:
            j = length - 1 - q
            return pull_one(stack.fetch(level(j)), start + j, gathered)

        _, stack = lax.fori_loop(0, length - 1, advance_one, (stack.fetch(top), stack))
        gathered = lax.fori_loop(0, count, pull_back_one, gathered)
        return CheckpointStack(stack.at, jnp.where(fits, top, stack.depth), stack.states), end - count, gathered

    stack, _, gathered = lax.while_loop(lambda held: held[1] > least, reverse_segment, (stack, end, gathered))
    return gathered, stack
