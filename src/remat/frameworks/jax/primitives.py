"""The two primitives by which JAX traces, batches, differentiates, transposes and compiles functions.

JAX gives `custom_vjp`, which refuses forward mode, and `custom_jvp`, whose tangents must be transposed as they are
written. Here `call` runs a function. Differentiated, it becomes a run that saves what the reverse needs, and `jvp`,
which carries tangents forward; the transpose of `jvp` is the pullback, and that is a call again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from remat.frameworks.jax.avals import Flags, aval_of, merge, select
from remat.frameworks.jax.batch_axes import has_name
from remat.frameworks.jax.differentiable import Arrays, DifferentiableFunction, Linearization
from remat.frameworks.jax.linearizations import VJP, Batched, BatchedLinearization, ForwardWithResiduals

__all__ = ["call"]

_call_p = Primitive("remat_call")
_call_p.multiple_results = True


def call(function: DifferentiableFunction, args: Arrays) -> list[Any]:
    """The results of a function, to be differentiated as it says."""
    return list(_call_p.bind(*args, function=function))


def _run(*args: Any, function: DifferentiableFunction) -> Arrays:
    return list(jaxpr_as_fun(function.traced(args))(*args))


_compiled = jax.jit(_run, static_argnames="function")


@_call_p.def_impl
def _call_impl(*args: Any, function: DifferentiableFunction) -> Arrays:
    return function.run(*args) if function.eager else _compiled(*args, function=function)


@_call_p.def_effectful_abstract_eval
def _call_looks(*args: Any, function: DifferentiableFunction) -> Any:
    program = function.traced(args)
    return program.out_avals, program.effects


def _call_jvp(primals: Arrays, tangents: Arrays, *, function: DifferentiableFunction) -> tuple[Arrays, Arrays]:
    active_inputs = tuple(not isinstance(tangent, ad.Zero) for tangent in tangents)
    derivative, extra = function.linearize(active_inputs, primals)
    found = call(ForwardWithResiduals(derivative), [*primals, *extra])
    outs, saved = found[: derivative.outs], [*extra, *found[derivative.outs :]]
    moved = select(active_inputs, tangents)
    pushed = iter(_push_p.bind(*primals, *saved, *moved, of=derivative, saved=len(saved)))
    flags = derivative.active_outputs
    return outs, [
        next(pushed) if flag else ad.Zero(jax.typeof(out).to_tangent_aval())
        for out, flag in zip(outs, flags, strict=True)
    ]


def _call_batch(
    axis: Any, args: Arrays, dims: Sequence[Any], *, function: DifferentiableFunction
) -> tuple[Arrays, Sequence[Any]]:
    flags = tuple(dim is not None for dim in dims)
    if not any(flags) and not has_name(axis):
        found = call(function, args)
        return found, [None] * len(found)
    args = _in_front(axis, args, dims, flags)
    made = function.batched(axis, flags, args)
    if made is None:
        found = call(Batched(function, axis, flags), args)
        return found, [0] * len(found)
    return call(made[0], made[1]), made[2]


def _in_front(axis: Any, args: Arrays, dims: Sequence[Any], flags: Flags) -> list[Any]:
    """The arguments with the batch as their first axis, where it is wanted."""
    pairs = zip(args, dims, flags, strict=True)
    return [batching.bdim_at_front(arg, dim, axis.size) if flag else jnp.asarray(arg) for arg, dim, flag in pairs]


ad.primitive_jvps[_call_p] = _call_jvp
batching.fancy_primitive_batchers[_call_p] = _call_batch
mlir.register_lowering(_call_p, mlir.lower_fun(_run, multiple_results=True))


# The primitive that pushes tangents forward. It is linear in these, and its transpose is the pullback.

_push_p = Primitive("remat_push")
_push_p.multiple_results = True


def _push(*args: Any, of: Linearization, saved: int) -> Arrays:
    count = len(of.active_inputs)
    return list(of.jvp(args[:count], args[count + saved :]))


_pushing = jax.jit(_push, static_argnames=("of", "saved"))


@_push_p.def_impl
def _push_impl(*args: Any, of: Linearization, saved: int) -> Arrays:
    return _push(*args, of=of, saved=saved) if of.eager else _pushing(*args, of=of, saved=saved)


@_push_p.def_effectful_abstract_eval
def _push_looks(*args: Any, of: Linearization, saved: int) -> Any:
    program = jax.make_jaxpr(partial(_push, of=of, saved=saved))(*map(aval_of, args))
    return program.out_avals, program.effects


def _push_jvp(primals: Arrays, tangents: Arrays, *, of: Linearization, saved: int) -> tuple[Arrays, Arrays]:
    count = len(of.active_inputs)
    held, first = primals[: count + saved], primals[count + saved :]
    active_inputs = tuple(not isinstance(tangent, ad.Zero) for tangent in tangents)
    if not any(active_inputs[:count]):
        moved = [ad.instantiate_zeros(tangent) for tangent in tangents[count + saved :]]
        bind = partial(_push_p.bind, *held, of=of, saved=saved)
        return bind(*first), bind(*moved)

    def differentiable_jvp(*moved: Any) -> Arrays:
        args = merge(active_inputs, moved, primals)
        return list(of.differentiable_jvp(args[:count], args[count + saved :]))

    return jax.jvp(differentiable_jvp, tuple(select(active_inputs, primals)), tuple(select(active_inputs, tangents)))


def _push_transpose(cotangents: Arrays, *args: Any, of: Linearization, saved: int) -> Arrays:
    given = tuple(not isinstance(cotangent, ad.Zero) for cotangent in cotangents)
    known = args[: len(of.active_inputs) + saved]
    assert not any(map(ad.is_undefined_primal, known)), "tangents do not flow through arguments"
    if not any(given):
        return [None] * len(args)
    found = call(VJP(of, given, saved), [*known, *select(given, cotangents)])
    return [None] * len(known) + found


def _push_batch(
    axis: Any, args: Arrays, dims: Sequence[Any], *, of: Linearization, saved: int
) -> tuple[Arrays, Sequence[Any]]:
    count = len(of.active_inputs)
    flags = _flags_of(of, dims, count, saved)
    kept = (False,) * of.extras + (True,) * (saved - of.extras)
    wanted = (*flags, *kept, *select(of.active_inputs, flags))
    batch = BatchedLinearization(Batched(of.function, axis, flags), of, axis, flags)
    found = _push_p.bind(*_in_front(axis, args, dims, wanted), of=batch, saved=saved)
    return found, [0] * len(found)


def _flags_of(of: Linearization, dims: Sequence[Any], count: int, saved: int) -> Flags:
    """Arguments that are batched, or whose tangents are."""
    tangents = iter(dims[count + saved :])
    of_tangents = [next(tangents) is not None if moves else False for moves in of.active_inputs]
    return tuple(dim is not None or flag for dim, flag in zip(dims[:count], of_tangents, strict=True))


ad.primitive_jvps[_push_p] = _push_jvp
ad.primitive_transposes[_push_p] = _push_transpose
batching.fancy_primitive_batchers[_push_p] = _push_batch
mlir.register_lowering(_push_p, mlir.lower_fun(_push, multiple_results=True))
