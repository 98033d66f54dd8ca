"""Avals (shape, dtype and sharding of an array), flags that select arrays, and what JAX does not document.

| part | contents |
|---|---|
| JAX's internals | programs as data, tracers, the innermost trace, buffers: names that a release of JAX may change |
| avals | `aval_of`, `row_aval`, `stacked_aval`, `nbytes`, `zeros_like_aval`, `vary_like`, `behind_barrier` |
| flags | `select`, `merge`: one bool for each array of a list says which ones are meant |
| batches | `BatchAxis`: the axis that vmap adds |

This file and `primitives.py` are the only ones that use undocumented parts of JAX, so that a new release is one diff;
`tests/frameworks/jax/test_private_api.py` names each of them, and says so if one is gone.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

# JAX's extension API is exported for libraries that build on JAX, without a promise of stability. All names below were
# checked with JAX 0.10.2 and in the sources of 0.11.1, where ClosedJaxpr is another name of Jaxpr.
# AbstractValue and Tracer are the types of avals and of traced arrays. The names of jax.extend.core make programs data
# and avals with one axis more or less (mapped_aval since 0.9, the others since 0.4.28); dce_jaxpr, since 0.4.27, gives
# a step without its residuals.
from jax.core import AbstractValue, Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, mapped_aval, unmapped_aval
from jax.extend.core.primitives import custom_jvp_call_p, custom_lin_p, custom_vjp_call_p
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import reshard

from remat.pytree import PyTree

__all__ = [
    "Array",
    "Aval",
    "BatchAxis",
    "ClosedJaxpr",
    "Flags",
    "Jaxpr",
    "Literal",
    "Tracer",
    "aval_of",
    "behind_barrier",
    "differentiable",
    "first_outputs",
    "have_distinct_buffers",
    "in_axes_of",
    "innermost_trace",
    "is_custom_rule",
    "is_tracing",
    "jaxpr_as_fun",
    "merge",
    "nbytes",
    "primitive_and_context",
    "row_aval",
    "select",
    "stacked_aval",
    "trace_of",
    "vary_like",
    "zeros_like_aval",
]

Array = jax.Array  # concrete or traced
Aval = Any  # AbstractValue declares neither shape nor dtype
Flags = tuple[bool, ...]
T = TypeVar("T")

# Calls of functions with derivatives of the user's own. `custom_lin` is what jax.jvp makes of a custom_vjp function.
_CUSTOM_RULES = frozenset({custom_jvp_call_p, custom_vjp_call_p, custom_lin_p})


def is_tracing() -> bool:
    """Whether the code that asks is run by a transformation of JAX, such as grad, jit or vmap."""
    # There is no public question of this kind: `jax.core` had it up to 0.7, `jax._src.core` has it in 0.11.
    for module in ("jax.core", "jax._src.core"):
        is_clean = getattr(sys.modules.get(module), "trace_state_clean", None)
        if is_clean is not None:
            return not is_clean()
    return isinstance(jnp.zeros(()), Tracer)  # without either, inside jit at least new arrays are traced


def innermost_trace() -> Any | None:
    """The trace of the innermost jit, checkpoint or make_jaxpr around the code that asks; None outside of these."""
    return trace_of(jnp.zeros(()))  # a new array is traced by the innermost one


def trace_of(value: PyTree) -> Any | None:
    """The trace that a tracer belongs to; None for arrays."""
    # `Tracer._trace` is private; 0.10 and 0.11 have it. Without it leaked tracers are not found, and all else works.
    return getattr(value, "_trace", None) if isinstance(value, Tracer) else None


def is_custom_rule(eqn: Any) -> bool:
    """Whether an equation of a jaxpr calls a function with derivatives of its own (custom_jvp, custom_vjp)."""
    return eqn.primitive in _CUSTOM_RULES


def primitive_and_context(eqn: Any) -> tuple[Any, Any]:
    """What an equation of a jaxpr applies, and under which settings: two equations that differ in these differ."""
    # `ctx` (JaxprEqnContext) is undocumented: compute type, mesh and the random number generator that were set.
    return eqn.primitive, eqn.ctx


def first_outputs(program: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """The program with its first `count` outputs alone, without what is only needed for the others."""
    used = [True] * count + [False] * (len(program.out_avals) - count)
    jaxpr, _ = dce_jaxpr(program.jaxpr, used, instantiate=True)  # instantiate: unused inputs stay inputs
    return ClosedJaxpr(jaxpr, program.consts)


def have_distinct_buffers(arrays: Sequence[Array]) -> bool:
    """Whether no two of the arrays share memory, so that all of them can be donated to one call."""
    # `unsafe_buffer_pointer` is undocumented, and nothing else tells; an array on several devices has no one address.
    try:
        return len({array.unsafe_buffer_pointer() for array in arrays}) == len(arrays)
    except Exception:
        return False


def aval_of(value: PyTree) -> Aval:
    """The aval of an array: shape, dtype, sharding, and the mesh axes over which it varies."""
    return value if isinstance(value, AbstractValue) else jax.typeof(value)


def row_aval(value: PyTree) -> Aval:
    """The aval of one row of a value: without its first axis."""
    aval = aval_of(value)
    return mapped_aval(aval.shape[0], 0, aval)


def stacked_aval(value: PyTree, size: int, mesh_axis: Any = None) -> Aval:
    """The aval of `size` such values, stacked along a new first axis."""
    return unmapped_aval(size, 0, aval_of(value), mesh_axis)


def behind_barrier(values: Iterable[Array]) -> list[Array]:
    """The values behind lax.optimization_barrier, so that XLA does not copy constants wherever an inner loop begins."""
    return [lax.optimization_barrier(value) for value in values]


def differentiable(aval: Aval) -> bool:
    """Whether it has tangents: floats and complex numbers do."""
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def nbytes(aval: Aval) -> int:
    """Bytes of an array."""
    size = 1
    for length in aval.shape:
        size *= length
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # a random key: its itemsize is not that of its data
        inner = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), aval.dtype))
        return int(size * inner.size * inner.dtype.itemsize)
    return int(size * aval.dtype.itemsize)


def zeros_like_aval(value: PyTree, rows: int | None = None) -> Array:
    """Zeros with the aval of a value, or `rows` of them stacked: sharded alike, and varying over the same mesh axes."""
    aval = aval_of(value) if rows is None else stacked_aval(value, rows)
    zeros = vary_like(lax.full(aval.shape, 0, aval.dtype), aval)
    if aval.sharding != aval_of(zeros).sharding and any(aval.sharding.spec):
        zeros = reshard(zeros, aval.sharding)  # over explicit mesh axes the compiler does not infer a sharding
    return zeros


def vary_like(value: Array, aval: Aval) -> Array:
    """The value, varying over all mesh axes over which the aval varies, inside shard_map."""
    missing = tuple(_varying_axes(aval) - _varying_axes(aval_of(value)))
    return lax.pcast(value, missing, to="varying") if missing else value


def _varying_axes(aval: Aval) -> frozenset[Any]:
    # Undocumented, and moved: `aval.vma` before JAX 0.10, `aval.manual_axis_type.varying` since.
    axes = getattr(aval, "vma", None)
    if axes is None:
        axes = getattr(getattr(aval, "manual_axis_type", None), "varying", None)
    return frozenset(axes or ())


def select(flags: Iterable[bool], values: Iterable[T]) -> list[T]:
    """The values with a flag.

    >>> select((True, False, True), "abc")
    ['a', 'c']
    """
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def merge(flags: Sequence[bool], selected: Iterable[T], values: Sequence[T]) -> list[T]:
    """The values, those with a flag replaced by the next of `selected`: the inverse of `select`.

    >>> merge((True, False, True), "xy", "abc")
    ['x', 'b', 'y']
    """
    rest = iter(selected)
    return [next(rest) if flag else value for value, flag in zip(values, flags, strict=True)]


def in_axes_of(flags: Iterable[bool]) -> list[int | None]:
    """The `in_axes` of jax.vmap for values that are batched along their first axis where there is a flag."""
    return [0 if flag else None for flag in flags]


class BatchAxis(NamedTuple):
    """The axis that a vmap adds, as a value: equal axes share compiled programs."""

    size: int
    name: Any  # None if the user gave none; by a name, functions may ask for their place in the batch
    spmd_name: Any
    mesh_axis: Any

    @classmethod
    def of(cls, axis: Any) -> "BatchAxis":
        """The axis that JAX hands to a batching rule."""
        # AxisData is private: its fields were checked with 0.10.2 and 0.11.1. An axis without a name has a sentinel.
        name = axis.name if isinstance(axis.name, str | tuple) else None
        return cls(axis.size, name, axis.spmd_name, axis.explicit_mesh_axis)

    def vmap(self, function: Callable[..., Any], in_axes: Any, out_axes: Any = 0) -> Callable[..., Any]:
        """The function for a batch along this axis."""
        named = {} if self.name is None else {"axis_name": self.name}
        return jax.vmap(function, in_axes, out_axes, axis_size=self.size, spmd_axis_name=self.spmd_name, **named)
