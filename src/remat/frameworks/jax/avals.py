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
    "barred",
    "blank",
    "differentiable",
    "look_of",
    "merged",
    "nbytes",
    "picked",
    "varied",
    "with_first",
    "without_first",
]

Flags = tuple[bool, ...]


def look_of(value: Any) -> Any:
    """What an array looks like to JAX: shape, dtype, sharding, and the axes that it varies over."""
    return value if isinstance(value, AbstractValue) else jax.typeof(value)


def without_first(value: Any) -> Any:
    """The looks of a value without its first axis."""
    look = look_of(value)
    return mapped_aval(look.shape[0], 0, look)


def with_first(value: Any, size: int, mesh_axis: Any = None) -> Any:
    """The looks of so many such values, on a new first axis."""
    return unmapped_aval(size, 0, look_of(value), mesh_axis)


def barred(values: Iterable[Any]) -> list[Any]:
    """The values, as ones that XLA knows nothing of: it copies large constants wherever an inner loop begins."""
    return [lax.optimization_barrier(value) for value in values]


def differentiable(look: Any) -> bool:
    """Whether it has tangents: floats and complex numbers."""
    return bool(jnp.issubdtype(look.dtype, jnp.inexact))


def nbytes(look: Any) -> int:
    """Bytes of an array."""
    size = 1
    for length in look.shape:
        size *= length
    if jnp.issubdtype(look.dtype, jax.dtypes.extended):
        inner = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), look.dtype))
        return int(size * inner.size * inner.dtype.itemsize)
    return int(size * look.dtype.itemsize)


def blank(value: Any, rows: int | None = None) -> Any:
    """Zeros that look like a value, or so many rows of them; they are where it is, and vary over what it varies."""
    look = look_of(value) if rows is None else with_first(value, rows)
    made = varied(lax.full(look.shape, 0, look.dtype), look)
    if look.sharding != look_of(made).sharding and any(look.sharding.spec):
        made = reshard(made, look.sharding)  # axes that are explicit are not found by the compiler
    return made


def varied(value: Any, look: Any) -> Any:
    """The value, varying over all axes that the look varies over, as seen inside shard_map."""
    missing = tuple(_varying(look) - _varying(look_of(value)))
    return lax.pcast(value, missing, to="varying") if missing else value


def _varying(look: Any) -> frozenset[Any]:
    """The axes that a value inside shard_map varies over; releases of JAX have it in different places."""
    found = getattr(look, "vma", None)
    if found is None:
        found = getattr(getattr(look, "manual_axis_type", None), "varying", None)
    return frozenset(found or ())


def picked(flags: Iterable[bool], values: Iterable[Any]) -> list[Any]:
    """The values with a flag."""
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def merged(flags: Sequence[bool], some: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """The values, those with a flag replaced by the next of `some`."""
    rest = iter(some)
    return [next(rest) if flag else value for value, flag in zip(others, flags, strict=True)]
