"""What arrays look like, and flags that pick some of them."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import AbstractValue
from jax.extend.core import mapped_aval, unmapped_aval
from jax.sharding import reshard

__all__ = [
    "Flags",
    "aval_of",
    "behind_barrier",
    "differentiable",
    "merge",
    "nbytes",
    "row_aval",
    "select",
    "vary_like",
    "with_first",
    "zeros_like_aval",
]

Flags = tuple[bool, ...]


def aval_of(value: Any) -> Any:
    """What an array looks like to JAX: shape, dtype, sharding, and the axes that it varies over."""
    return value if isinstance(value, AbstractValue) else jax.typeof(value)


def row_aval(value: Any) -> Any:
    """The looks of a value without its first axis."""
    aval = aval_of(value)
    return mapped_aval(aval.shape[0], 0, aval)


def with_first(value: Any, size: int, mesh_axis: Any = None) -> Any:
    """The looks of so many such values, on a new first axis."""
    return unmapped_aval(size, 0, aval_of(value), mesh_axis)


def behind_barrier(values: Iterable[Any]) -> list[Any]:
    """The values, as ones that XLA knows nothing of: it copies large constants wherever an inner loop begins."""
    return [lax.optimization_barrier(value) for value in values]


def differentiable(aval: Any) -> bool:
    """Whether it has tangents: floats and complex numbers."""
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def nbytes(aval: Any) -> int:
    """Bytes of an array."""
    size = 1
    for length in aval.shape:
        size *= length
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        inner = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), aval.dtype))
        return int(size * inner.size * inner.dtype.itemsize)
    return int(size * aval.dtype.itemsize)


def zeros_like_aval(value: Any, rows: int | None = None) -> Any:
    """Zeros that look like a value, or so many rows of them; they are where it is, and vary over what it varies."""
    aval = aval_of(value) if rows is None else with_first(value, rows)
    made = vary_like(lax.full(aval.shape, 0, aval.dtype), aval)
    if aval.sharding != aval_of(made).sharding and any(aval.sharding.spec):
        made = reshard(made, aval.sharding)  # axes that are explicit are not found by the compiler
    return made


def vary_like(value: Any, aval: Any) -> Any:
    """The value, varying over all axes that the look varies over, as seen inside shard_map."""
    missing = tuple(_varying(aval) - _varying(aval_of(value)))
    return lax.pcast(value, missing, to="varying") if missing else value


def _varying(aval: Any) -> frozenset[Any]:
    """The axes that a value inside shard_map varies over; releases of JAX have it in different places."""
    found = getattr(aval, "vma", None)
    if found is None:
        found = getattr(getattr(aval, "manual_axis_type", None), "varying", None)
    return frozenset(found or ())


def select(flags: Iterable[bool], values: Iterable[Any]) -> list[Any]:
    """The values with a flag."""
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def merge(flags: Sequence[bool], some: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """The values, those with a flag replaced by the next of `some`."""
    rest = iter(some)
    return [next(rest) if flag else value for value, flag in zip(others, flags, strict=True)]
