"""Avals (shape, dtype and sharding of an array), flags that select arrays, and JAX's undocumented parts.

| part | contents |
|---|---|
| JAX's internals | jaxprs, tracers, the innermost trace, buffers: names that may change with a release of JAX |
| avals | `aval_of`, `row_aval`, `stacked_aval`, `nbytes`, `zeros_like_aval`, `vary_like`, `behind_barrier` |
| flags | `select`, `merge`: one bool for each array of a list says whether it is selected |
| batches | `BatchAxis`: the axis that vmap adds |

Only this file, `identities.py`, `mutable_arrays.py` and `primitives.py` use undocumented parts of JAX;
`tests/frameworks/jax/test_private_api.py` lists each of them and fails if one is gone.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

# JAX's extension API is exported for libraries that build on JAX, without a promise of stability. All names below were
# checked with JAX 0.10.2 and in the sources of 0.11.1, where ClosedJaxpr is another name for Jaxpr. AbstractValue and
# Tracer are the types of avals and traced arrays. jax.extend.core has jaxprs as data, and avals with one axis more or
# less (mapped_aval since 0.9, the others since 0.4.28); dce_jaxpr (0.4.27) gives a step without its residuals.
# JaxprTracer is the type of tangents while a function is linearized.
from jax.core import AbstractValue, Tracer
from jax.export import is_symbolic_dim
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, mapped_aval, unmapped_aval
from jax.extend.core.primitives import (
    closed_call_p,
    custom_jvp_call_p,
    custom_lin_p,
    custom_vjp_call_p,
    jit_p,
    remat_p,
    rng_uniform_p,
)
from jax.interpreters.partial_eval import JaxprTracer, dce_jaxpr
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
    "called_program",
    "differentiable",
    "equation_program",
    "has_loop",
    "have_distinct_buffers",
    "in_axes_of",
    "innermost_trace",
    "inputs_needed",
    "is_custom_rule",
    "is_linearized",
    "is_ref",
    "is_symbolic",
    "is_tracing",
    "jax_checkpoint",
    "jaxpr_as_fun",
    "lax_fori_loop",
    "lax_scan",
    "lax_while_loop",
    "merge",
    "nbytes",
    "operation_name",
    "primitive_and_context",
    "register_checks",
    "register_linearization",
    "row_aval",
    "run_equation",
    "select",
    "stacked_aval",
    "trace_of",
    "unrepeatable",
    "vary_like",
    "with_results",
    "without_unused",
    "zeros_like_aval",
]

# JAX's original loops: `replace_loops` may have replaced those of jax.lax by ours, which must not call themselves.
_loops = sys.modules.get("jax._src.lax.control_flow.loops")
lax_scan: Callable[..., Any] = getattr(_loops, "scan", lax.scan)
lax_fori_loop: Callable[..., Any] = getattr(_loops, "fori_loop", lax.fori_loop)
lax_while_loop: Callable[..., Any] = getattr(_loops, "while_loop", lax.while_loop)
jax_checkpoint: Callable[..., Any] = getattr(sys.modules.get("jax._src.ad_checkpoint"), "checkpoint", jax.checkpoint)

Array = jax.Array  # concrete or traced
Aval = Any  # AbstractValue declares neither shape nor dtype
Flags = tuple[bool, ...]
T = TypeVar("T")

# Calls of functions with user-defined derivatives. `custom_lin` is what jax.jvp makes of a custom_vjp function.
_CUSTOM_RULES = frozenset({custom_jvp_call_p, custom_vjp_call_p, custom_lin_p})
# Calls that run a jaxpr as it is, and whose derivatives are those of the jaxpr.
_PLAIN_CALLS = frozenset({jit_p, remat_p, closed_call_p})


def is_tracing() -> bool:
    """Whether the calling code runs under a JAX transformation, such as grad, jit or vmap."""
    # There is no public query: it was in `jax.core` up to 0.7, and is in `jax._src.core` in 0.11.
    for module in ("jax.core", "jax._src.core"):
        is_clean = getattr(sys.modules.get(module), "trace_state_clean", None)
        if is_clean is not None:
            return not is_clean()
    return isinstance(jnp.zeros(()), Tracer)  # the fallback sees jit at least, where new arrays are traced


def innermost_trace() -> Any | None:
    """The trace of the innermost jit, checkpoint or make_jaxpr around the calling code; None outside of these."""
    return trace_of(jnp.zeros(()))  # new arrays belong to the innermost trace


def trace_of(value: PyTree) -> Any | None:
    """The trace that a tracer belongs to; None for an array."""
    # `Tracer._trace` is private, and exists in 0.10 and 0.11. Without it leaked tracers are not found; all else works.
    return getattr(value, "_trace", None) if isinstance(value, Tracer) else None


def is_custom_rule(eqn: Any) -> bool:
    """Whether an equation of a jaxpr calls a function with its own derivative rule (custom_jvp, custom_vjp)."""
    return eqn.primitive in _CUSTOM_RULES


def called_program(eqn: Any) -> Any | None:
    """The jaxpr that an equation runs as it is, such as that of jit or checkpoint; None for other equations."""
    if eqn.primitive not in _PLAIN_CALLS:
        return None
    inner = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
    inner = getattr(inner, "jaxpr", inner)
    return None if inner.constvars or len(inner.invars) != len(eqn.invars) else inner


def is_ref(value: PyTree) -> bool:
    """Whether a value, or a variable of a jaxpr, is a mutable array (jax.new_ref)."""
    # AbstractRef is private, so it is recognized by its name.
    aval = getattr(value, "aval", None)
    if aval is None:
        aval = value if isinstance(value, AbstractValue) else None
    return type(aval).__name__ == "AbstractRef"


def is_linearized(tangent: PyTree) -> bool:
    """Whether a tangent is symbolic: the function is being linearized, for reverse mode or by jax.linearize."""
    return isinstance(tangent, JaxprTracer)


def unrepeatable(program: ClosedJaxpr) -> str | None:
    """What a program does that a second run would not repeat, in words; None if a second run is the same."""
    # The effects that jax.checkpoint allows, and their names, are private. Debug prints and checks may be repeated.
    allowed = getattr(sys.modules.get("jax._src.effects"), "remat_allowed_effects", None)
    for effect in program.effects:
        name = type(effect).__name__
        if name in ("ReadEffect", "WriteEffect", "AccumEffect"):
            return "it reads or writes a mutable array (jax.new_ref) that it closes over"
        if allowed is not None and not allowed.contains(effect):
            what = "a callback" if "IO" in name or "Callback" in name else "an operation"
            return f"it has a side effect, that of {what} ({name})"
    return "it draws from lax.rng_uniform, which has a state of its own" if _draws(program) else None


def _draws(value: PyTree) -> bool:
    """Whether a program, or a parameter of an operation, uses a random generator whose state cannot be restored."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return any(eqn.primitive is rng_uniform_p or any(map(_draws, eqn.params.values())) for eqn in value.eqns)
    return isinstance(value, tuple | list) and any(map(_draws, value))


_LOOPS = frozenset({"scan", "while", "remat_call", "remat_jvp"})  # the last two are our own primitives


def has_loop(program: ClosedJaxpr) -> bool:
    """Whether a program has a loop, but no custom_vjp rule, no side effect and no argument split by shard_map."""
    names = set(_primitive_names(program))
    varying = any(map(_varying_axes, program.in_avals))
    return not (_LOOPS.isdisjoint(names) or program.effects or varying or custom_vjp_call_p.name in names)


def _primitive_names(value: PyTree) -> Iterator[str]:
    """The names of all operations of a program, including those of programs in the operations' parameters."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        for eqn in value.eqns:
            yield eqn.primitive.name
            for parameter in eqn.params.values():
                yield from _primitive_names(parameter)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _primitive_names(each)


def without_unused(program: ClosedJaxpr, used: Sequence[bool], inputs: Sequence[bool] | bool = True) -> ClosedJaxpr:
    """The program with only the used results; flagged inputs stay, the others only if they are needed."""
    jaxpr, _ = dce_jaxpr(program.jaxpr, list(used), instantiate=inputs)
    return ClosedJaxpr(jaxpr, program.consts)


def with_results(program: ClosedJaxpr, results: Sequence[Any]) -> ClosedJaxpr:
    """The program with other variables as its results."""
    return ClosedJaxpr(program.jaxpr.replace(outvars=list(results)), program.consts)


def operation_name(eqn: Any) -> str:
    """The name of an equation's operation, such as "dot_general"."""
    return str(eqn.primitive.name)


def equation_program(program: ClosedJaxpr, eqn: Any) -> ClosedJaxpr:
    """One equation as a program of its own; its arguments are the equation's variables, one for each occurrence."""
    jaxpr = program.jaxpr
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    variables = [var for var in eqn.invars if not isinstance(var, Literal)]
    fresh = [type(var)(var.aval) for var in variables]  # one for each place: a variable may be read twice
    made = iter(fresh)
    invars = [var if isinstance(var, Literal) else next(made) for var in eqn.invars]
    alone = jaxpr.replace(
        constvars=[], invars=fresh, outvars=list(eqn.outvars), eqns=[eqn.replace(invars=invars)], debug_info=names
    )
    return ClosedJaxpr(alone, [])


def run_equation(eqn: Any, values: Sequence[Any]) -> Array:
    """The single result of an equation without inner jaxprs, run under the settings that it was traced with."""
    with eqn.ctx.manager:
        result: Array = eqn.primitive.bind(*values, **eqn.params)
    return result


def inputs_needed(program: ClosedJaxpr, used: Sequence[bool]) -> Flags:
    """Which inputs the used results depend on."""
    return tuple(dce_jaxpr(program.jaxpr, list(used))[1])


def register_checks(primitive: Any, program_of: Callable[..., ClosedJaxpr]) -> None:
    """Let jax.experimental.checkify see inside a primitive, whose jaxpr is `program_of(args, **params)`."""
    # Without a rule, checkify checks nothing inside of a primitive. Its table of rules is private.
    from jax._src import checkify

    # Since 0.11.2 a context is the first argument of rules and of the functions that they call.
    contexts = int("ctx" in inspect.signature(checkify.checkify_jaxpr).parameters)

    def check(*given: Any, **params: Any) -> Any:
        context, (error, enabled_errors, *args) = given[:contexts], given[contexts:]
        return checkify.checkify_jaxpr(*context, program_of(args, **params), enabled_errors, error, *args)

    checkify.error_checks[primitive] = check


def register_linearization(primitive: Any, rule: Callable[..., Any]) -> None:
    """Register rule(is_vjp, nonzero, *args, **params) as the primitive's linearization, if JAX supports such rules."""
    # The table is private; rules take `is_vjp` since 0.9. Without it JAX linearizes the JVP, which stores a bit more.
    module = sys.modules.get("jax._src.interpreters.ad")
    rules, fallback = (getattr(module, name, None) for name in ("primitive_linearizations", "fallback_linearize_rule"))
    if rules is None or fallback is None or "_is_vjp" not in inspect.signature(fallback).parameters:
        return

    def structured(*args: Any, **params: Any) -> Any:
        outputs, nonzero, residuals, linear = rule(*args, **params)
        return outputs, nonzero, residuals, None, lambda residuals, _, *tangents: linear(residuals, *tangents)

    # Since 0.11 there are also structured residuals, which we do not use.
    annotations = getattr(getattr(module, "LinearizeTrace", None), "__annotations__", {})
    rules[primitive] = structured if "structured_residuals" in annotations else rule


def primitive_and_context(eqn: Any) -> tuple[Any, Any]:
    """The primitive of an equation and the settings it runs under: both are part of what makes equations equal."""
    # `ctx` (JaxprEqnContext) is undocumented: the compute type, the mesh and the random number generator in force.
    return eqn.primitive, eqn.ctx


def have_distinct_buffers(arrays: Sequence[Array]) -> bool:
    """Whether no two arrays share memory, so that all of them can be donated to one call."""
    # `unsafe_buffer_pointer` is undocumented, and there is no other way. An array on several devices has no single
    # address.
    try:
        return len({array.unsafe_buffer_pointer() for array in arrays}) == len(arrays)
    except Exception:
        return False


def aval_of(value: PyTree) -> Aval:
    """The aval of an array: shape, dtype, sharding, and the mesh axes that it varies over."""
    return value if isinstance(value, AbstractValue) else jax.typeof(value)


def row_aval(value: PyTree) -> Aval:
    """The aval of one row of a value, without its first axis."""
    aval = aval_of(value)
    return mapped_aval(aval.shape[0], 0, aval)


def stacked_aval(value: PyTree, size: int, mesh_axis: Any = None) -> Aval:
    """The aval of `size` copies of the value, stacked along a new first axis."""
    return unmapped_aval(size, 0, aval_of(value), mesh_axis)


def behind_barrier(values: Iterable[Array]) -> list[Array]:
    """The values behind lax.optimization_barrier, so that XLA does not copy constants wherever an inner loop starts."""
    return [lax.optimization_barrier(value) for value in values]


def is_symbolic(size: object) -> bool:
    """Whether a size is a symbolic dimension of jax.export."""
    return is_symbolic_dim(size)  # type: ignore[arg-type]


def differentiable(aval: Aval) -> bool:
    """Whether arrays of this aval have tangents, as floats and complex numbers do."""
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def nbytes(aval: Aval) -> int:
    """Bytes of an array."""
    size = 1
    for length in aval.shape:
        size *= length
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # a random key: its itemsize is not the size of its data
        inner = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), aval.dtype))
        return int(size * inner.size * inner.dtype.itemsize)
    return int(size * aval.dtype.itemsize)


def zeros_like_aval(value: PyTree, rows: int | None = None) -> Array:
    """Zeros with the aval of a value, or `rows` of them stacked: same sharding, varying over the same mesh axes."""
    aval = aval_of(value) if rows is None else stacked_aval(value, rows)
    zeros = vary_like(lax.full(aval.shape, 0, aval.dtype), aval)
    if aval.sharding != aval_of(zeros).sharding and any(aval.sharding.spec):
        zeros = reshard(zeros, aval.sharding)  # over explicit mesh axes the compiler infers no sharding
    return zeros


def vary_like(value: Array, aval: Aval) -> Array:
    """The value, made to vary over all mesh axes that the aval varies over (inside shard_map)."""
    missing = tuple(_varying_axes(aval) - _varying_axes(aval_of(value)))
    return lax.pcast(value, missing, to="varying") if missing else value


def _varying_axes(aval: Aval) -> frozenset[Any]:
    # Undocumented and moved: `aval.vma` before JAX 0.10, `aval.manual_axis_type.varying` since.
    axes = getattr(aval, "vma", None)
    if axes is None:
        axes = getattr(getattr(aval, "manual_axis_type", None), "varying", None)
    return frozenset(axes or ())


def select(flags: Iterable[bool], values: Iterable[T]) -> list[T]:
    """The values whose flag is set.

    >>> select((True, False, True), "abc")
    ['a', 'c']
    """
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def merge(flags: Sequence[bool], selected: Iterable[T], values: Sequence[T]) -> list[T]:
    """The values, with flagged ones replaced in order by those of `selected`: the inverse of `select`.

    >>> merge((True, False, True), "xy", "abc")
    ['x', 'b', 'y']
    """
    rest = iter(selected)
    return [next(rest) if flag else value for value, flag in zip(values, flags, strict=True)]


def in_axes_of(flags: Iterable[bool]) -> list[int | None]:
    """The `in_axes` of jax.vmap for values of which the flagged ones are batched along their first axis."""
    return [0 if flag else None for flag in flags]


class BatchAxis(NamedTuple):
    """The axis that vmap adds, as a value: equal axes share compiled programs."""

    size: int
    name: Any  # None if the user gave none; with a name, a function can ask for its index in the batch
    spmd_name: Any
    mesh_axis: Any

    @classmethod
    def of(cls, axis: Any) -> "BatchAxis":
        """The axis that JAX passes to a batching rule."""
        # AxisData is private; its fields were checked with 0.10.2 and 0.11.1. An axis without a name has a sentinel as
        # name.
        name = axis.name if isinstance(axis.name, str | tuple) else None
        return cls(axis.size, name, axis.spmd_name, axis.explicit_mesh_axis)

    def vmap(self, function: Callable[..., Any], in_axes: Any, out_axes: Any = 0) -> Callable[..., Any]:
        """The function mapped over this axis."""
        named = {} if self.name is None else {"axis_name": self.name}
        return jax.vmap(function, in_axes, out_axes, axis_size=self.size, spmd_axis_name=self.spmd_name, **named)
