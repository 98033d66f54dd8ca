"""Arrays that plain programs update in place: JAX's arrays are immutable, and have `.at` for it."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.pytree import Leaf

__all__ = ["integers", "is_differentiating", "put_item", "random_states", "segment", "shares_memory", "unstack"]


def is_differentiating() -> bool:
    """True: a loop is compiled as one, whether or not it is differentiated."""
    return True


def put_item(x: Leaf, index: object, value: Leaf) -> jax.Array:
    """The array after `x[index] = value`."""
    return jnp.asarray(x).at[index].set(value)


def integers(numbers: range) -> jax.Array:
    """The numbers of a range as an input of a loop."""
    return jnp.arange(numbers.start, numbers.stop, numbers.step)


def random_states() -> list[ReplayableState]:
    """The global random generators that programs draw from; JAX has none of its own."""
    return global_rng_states()


def segment(function: Callable[..., list[Leaf]], arrays: Sequence[Leaf]) -> list[Leaf]:
    """What a function of arrays returns; its residuals are recomputed in the backward. It is traced once."""
    return jax.checkpoint(function)(*arrays)  # type: ignore[no-any-return]


def unstack(rows: Leaf) -> Sequence[Leaf]:
    """The rows of an array."""
    return list(rows)


def shares_memory(one: Leaf, other: Leaf) -> bool:
    """False: no array of JAX can be written into."""
    return False
