"""Arrays that plain programs update in place: JAX's arrays are immutable, and have `.at` for it."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from remat.errors import DeterminismError
from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.frameworks.jax.avals import Tracer, merge, select
from remat.frameworks.jax.identities import may_be_pulled_back
from remat.pytree import Leaf

__all__ = [
    "integers",
    "is_concrete",
    "is_differentiating",
    "put_item",
    "random_states",
    "segment",
    "shares_memory",
    "unstack",
]


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


def is_concrete(arrays: Sequence[Leaf]) -> bool:
    """Whether Python may branch on these arrays: all have values, outside of jit and vmap, also under grad."""
    return not any(isinstance(array, Tracer) and isinstance(_value(array), Tracer) for array in arrays)


def _value(array: Leaf) -> Leaf:
    """An array without what it is traced for, as far as it is traced to be differentiated."""
    # Keys of random numbers have no tangents, and are no input of stop_gradient.
    return array if jnp.issubdtype(array.dtype, jax.dtypes.extended) else lax.stop_gradient(array)


def segment(
    function: Callable[..., list[Leaf]], arrays: Sequence[Leaf], again: Callable[..., list[Leaf]] | None = None
) -> list[Leaf]:
    """What a function of arrays returns; its residuals are recomputed in the backward.

    It is traced once; with `again` it is not: Python runs it on values, and `again` in the backward, which is the same
    function. Then it must not close over traced arrays; JAX refuses that.
    """
    if again is None:
        return jax.checkpoint(function)(*arrays)  # type: ignore[no-any-return]
    traced = tuple(map(may_be_pulled_back, arrays))
    if not any(traced):  # forward mode keeps nothing
        return function(*arrays)

    first: list[Leaf] = []

    def forward(*args: Leaf) -> tuple[list[Leaf], tuple[tuple[Leaf, ...], list[Leaf]]]:
        # Under a trace, as in the backward: what plain JAX refuses to turn into numbers is refused here, too.
        results, _ = jax.vjp(lambda *args: function(*merge(traced, args, arrays)), *args)
        first.extend(results)
        return results, (args, results)

    def backward(residuals: tuple[tuple[Leaf, ...], list[Leaf]], cotangents: list[Leaf]) -> tuple[Leaf, ...]:
        args, expected = residuals
        results, pullback = jax.vjp(lambda *args: again(*merge(traced, args, arrays)), *args)
        _check_repeated(expected, results)
        return pullback(cotangents)  # type: ignore[no-any-return]

    run = jax.custom_vjp(lambda *args: function(*merge(traced, args, arrays)))
    run.defvjp(forward, backward)
    results = run(*select(traced, arrays))
    # Whole numbers and keys of random numbers have no tangents: they are handed on as values, as in plain JAX.
    return [one if jnp.issubdtype(one.dtype, jnp.inexact) else value for one, value in zip(results, first, strict=True)]


def _check_repeated(first: Sequence[Leaf], second: Sequence[Leaf]) -> None:
    """Raise a DeterminismError if a second run of Python code gave other arrays than the first."""
    if len(first) == len(second) and all(map(_is_repeated, first, second)):
        return
    raise DeterminismError(
        "turns that were run again in the backward gave other values than at first. They may read or change "
        "something outside of the loop: an iterator, a file, the time. Compute it before the loop"
    )


def _is_repeated(one: Leaf, other: Leaf) -> bool:
    if jnp.shape(one) != jnp.shape(other) or not is_concrete([one, other]):  # second derivatives may see no values
        return jnp.shape(one) == jnp.shape(other)
    one, other = _value(one), _value(other)
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        return bool((one == other).all())
    # Sums on a GPU may differ in their last digits, from one run to the next.
    tolerance = float(jnp.finfo(one.dtype).eps) ** 0.25
    return bool(jnp.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True))


def unstack(rows: Leaf) -> Sequence[Leaf]:
    """The rows of an array."""
    return list(rows)


def shares_memory(one: Leaf, other: Leaf) -> bool:
    """False: no array of JAX can be written into."""
    return False
