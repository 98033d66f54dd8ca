"""Arrays that plain programs update in place: JAX's arrays are immutable, and have `.at` for it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from remat.pytree import Leaf

__all__ = ["integers", "is_differentiating", "put_item", "shares_memory", "unstack"]


def is_differentiating() -> bool:
    """True: a loop is compiled as one, whether or not it is differentiated."""
    return True


def put_item(x: Leaf, index: object, value: Leaf) -> jax.Array:
    """The array after `x[index] = value`."""
    return jnp.asarray(x).at[index].set(value)


def integers(numbers: range) -> jax.Array:
    """The numbers of a range as an input of a loop."""
    return jnp.arange(numbers.start, numbers.stop, numbers.step)


def unstack(rows: Leaf) -> Sequence[Leaf]:
    """The rows of an array."""
    return list(rows)


def shares_memory(one: Leaf, other: Leaf) -> bool:
    """False: no array of JAX can be written into."""
    return False
