"""In-place updates of plain programs, written functionally: JAX arrays are immutable and offer `.at` instead."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from remat.errors import DeterminismError
from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.frameworks.jax.avals import Tracer, merge, select
from remat.frameworks.jax.transforms.identities import may_be_pulled_back
from remat.profiling.source_location import place_of
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
    """True: a loop is compiled as one loop whether or not it is differentiated."""
    return True


def put_item(x: Leaf, index: object, value: Leaf) -> jax.Array:
    """The array after `x[index] = value`; JAX would leave out what is beyond an end, and NumPy raises."""
    for axis, place in enumerate(index if isinstance(index, tuple) else (index,)):
        if not isinstance(place, int | np.integer) or isinstance(place, bool):
            break
        size = jnp.shape(x)[axis]
        if not -size <= place < size:
            raise IndexError(f"index {place} is out of bounds for axis {axis} with size {size}")
    return jnp.asarray(x).at[index].set(value)


def integers(numbers: range) -> jax.Array:
    """The numbers of a range as an input array of a loop."""
    return jnp.arange(numbers.start, numbers.stop, numbers.step)


def random_states() -> list[ReplayableState]:
    """The global random generators that programs draw from; JAX itself has none."""
    return global_rng_states()


def is_concrete(arrays: Sequence[Leaf]) -> bool:
    """Whether Python may branch on these arrays: all have values, which excludes jit and vmap but not grad."""
    return not any(isinstance(array, Tracer) and isinstance(_value(array), Tracer) for array in arrays)


def _value(array: Leaf) -> Leaf:
    """The array with its differentiation tracers removed."""
    # Random keys have no tangents, and stop_gradient does not accept them.
    return array if jnp.issubdtype(array.dtype, jax.dtypes.extended) else lax.stop_gradient(array)


def segment(
    function: Callable[..., list[Leaf]], arrays: Sequence[Leaf], again: Callable[..., list[Leaf]] | None = None
) -> list[Leaf]:
    """What a function of arrays returns; its residuals are recomputed in the backward.

    Without `again` the function is traced once. With `again`, Python runs `function` on values and `again`, the same
    function, in the backward; then it must not close over traced arrays, which JAX refuses.
    """
    if again is None:
        return jax.checkpoint(function)(*arrays)  # type: ignore[no-any-return]
    traced = tuple(map(may_be_pulled_back, arrays))
    if not any(traced):  # forward mode keeps no residuals
        return function(*arrays)

    first: list[Leaf] = []

    def forward(*args: Leaf) -> tuple[list[Leaf], tuple[tuple[Leaf, ...], list[Leaf]]]:
        # Run under a trace, as the backward does, so that both refuse what plain JAX refuses to turn into numbers.
        results, _ = jax.vjp(lambda *args: function(*merge(traced, args, arrays)), *args)
        first.extend(results)
        return results, (args, results)

    def backward(residuals: tuple[tuple[Leaf, ...], list[Leaf]], cotangents: list[Leaf]) -> tuple[Leaf, ...]:
        args, expected = residuals
        results, pullback = jax.vjp(lambda *args: again(*merge(traced, args, arrays)), *args)
        _check_repeated(expected, results, place_of(function))
        return pullback(cotangents)  # type: ignore[no-any-return]

    run = jax.custom_vjp(lambda *args: function(*merge(traced, args, arrays)))
    run.defvjp(forward, backward)
    results = run(*select(traced, arrays))
    # Integers and random keys have no tangents: return their values, as plain JAX does.
    return [one if jnp.issubdtype(one.dtype, jnp.inexact) else value for one, value in zip(results, first, strict=True)]


def tape_bytes(function: Callable[..., list[Leaf]], arrays: Sequence[Leaf]) -> int:
    """The bytes of the residuals of a function of arrays, beside these."""
    values = [_value(array) for array in arrays]
    active = tuple(jnp.issubdtype(array.dtype, jnp.inexact) for array in values)

    def run(*args: Leaf) -> list[Leaf]:
        return [each for each in function(*merge(active, args, values)) if jnp.issubdtype(each.dtype, jnp.inexact)]

    _, pullback = jax.vjp(run, *select(active, values))
    given = set(map(id, values))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pullback) if id(leaf) not in given)


def _check_repeated(first: Sequence[Leaf], second: Sequence[Leaf], place: str) -> None:
    """Raise a DeterminismError if the second run of Python code returned different arrays from the first."""
    if len(first) == len(second) and all(map(_is_repeated, first, second)):
        return
    raise DeterminismError(
        f"{place}: iterations that ran again in the backward gave other values than the first time. They may read or "
        "change something outside the loop: an iterator, a file, the time. Compute it before the loop"
    )


def _is_repeated(one: Leaf, other: Leaf) -> bool:
    if jnp.shape(one) != jnp.shape(other) or not is_concrete([one, other]):  # no values in some second derivatives
        return jnp.shape(one) == jnp.shape(other)
    one, other = _value(one), _value(other)
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        return bool((one == other).all())
    # Sums on a GPU may differ in their last digits from run to run.
    tolerance = float(jnp.finfo(one.dtype).eps) ** 0.25
    return bool(jnp.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True))


def unstack(rows: Leaf) -> Sequence[Leaf]:
    """The rows of an array."""
    return list(rows)


def shares_memory(one: Leaf, other: Leaf) -> bool:
    """False: no JAX array can be written into."""
    return False
