"""The two primitives by which JAX traces, batches, differentiates, transposes and compiles our functions.

| | `remat_call` | `remat_jvp` |
|---|---|---|
| is | a call of a `DifferentiableFunction` | a `Linearization` applied to tangents |
| differentiated | `remat_call` of `ForwardWithResiduals`, and `remat_jvp` | its `differentiable_jvp` |
| transposed | the plain function, where it is linear | `remat_call` of a `VJP` |
| batched | `remat_call` of the function for a batch | `remat_jvp` of a `BatchedLinearization` |

`differentiable.py` has the diagram. A second parameter of both, `placing`, is read by JAX alone: it looks for the
devices and memories of a program in all jaxprs among parameters, and would not find those inside a function of ours.

The rules below use JAX's extension API for primitives (jax.interpreters), which comes without a promise of stability;
all of it was checked with JAX 0.10.2 and in the sources of 0.11.1. There is no public alternative: `custom_vjp` refuses
forward mode, and `custom_jvp` has no transpose rule.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.typing import ArrayLike

from remat.frameworks.jax.avals import (
    Array,
    BatchAxis,
    ClosedJaxpr,
    Flags,
    aval_of,
    differentiable,
    in_axes_of,
    is_linearized,
    jaxpr_as_fun,
    merge,
    register_checks,
    register_linearization,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.transforms.differentiable import Arrays, DifferentiableFunction, Linearization
from remat.frameworks.jax.transforms.linearizations import VJP, Batched, BatchedLinearization, ForwardWithResiduals
from remat.frameworks.jax.transforms.mutable_arrays import register_discharge
from remat.frameworks.jax.transforms.propagation import places_values
from remat.frameworks.jax.transforms.pruned import prune

__all__ = ["call"]

_call_p = Primitive("remat_call")
_call_p.multiple_results = True


def call(function: DifferentiableFunction, args: Sequence[ArrayLike]) -> list[Array]:
    """The results of a function, with its own derivative and batching rules."""
    return list(_call_p.bind(*args, function=function, placing=_placing(function)))


def _placing(function: DifferentiableFunction) -> tuple[ClosedJaxpr, ...]:
    """Those of its programs that place values on devices or in memories."""
    return tuple(filter(places_values, function.programs))


def _run(*args: Array, function: DifferentiableFunction, **_: Any) -> Arrays:
    return list(jaxpr_as_fun(function.jaxpr(args))(*args))


_run_compiled = jax.jit(_run, static_argnames="function")


@_call_p.def_impl
def _call_impl(*args: Array, function: DifferentiableFunction, **_: Any) -> Arrays:
    return function.run(*args) if function.eager else _run_compiled(*args, function=function)


@_call_p.def_effectful_abstract_eval
def _call_abstract_eval(*args: Array, function: DifferentiableFunction, **_: Any) -> Any:
    program = function.jaxpr(args)
    return program.out_avals, program.effects


class _Linearized(NamedTuple):
    """A function linearized at its arguments: its results, and the residuals that the jvp primitive needs."""

    linearization: Linearization
    outputs: Arrays
    residuals: list[Any]

    def tangents(self, primals: Arrays, residuals: Arrays, tangents: Arrays) -> list[Any]:
        """The tangents of the results, linear in those of the active arguments."""
        rest = iter(_apply(self.linearization, len(residuals), [*primals, *residuals, *tangents]))
        pairs = zip(self.outputs, self.linearization.active_outputs, strict=True)
        # The tangents of integers have dtype float0.
        return [next(rest) if flag else ad.Zero(jax.typeof(output).to_tangent_aval()) for output, flag in pairs]


def _linearized(
    function: DifferentiableFunction, active_inputs: Flags, primals: Arrays, *, reverse: bool
) -> _Linearized:
    linearization, extra = function.linearize(active_inputs, primals)
    if linearization.error is not None and reverse:
        raise linearization.error  # now rather than in the transpose: nothing has run yet
    results = call(ForwardWithResiduals(linearization), [*primals, *extra])
    count = linearization.n_outputs
    return _Linearized(linearization, results[:count], [*extra, *results[count:]])


def _call_jvp(
    primals: Arrays, tangents: Arrays, *, function: DifferentiableFunction, **_: Any
) -> tuple[Arrays, Sequence[Any]]:
    # A tangent known to be zero is an instance of ad.Zero; its argument is not active.
    active_inputs = tuple(not isinstance(tangent, ad.Zero) for tangent in tangents)
    linearized = _linearized(function, active_inputs, primals, reverse=any(map(is_linearized, tangents)))
    active = select(active_inputs, tangents)
    return linearized.outputs, linearized.tangents(primals, linearized.residuals, active)


def _call_linearize(
    is_vjp: bool, nonzero: Sequence[bool], *primals: Array, function: DifferentiableFunction, **_: Any
) -> Any:
    """Like `_call_jvp`, when JAX linearizes; arguments that a VJP does not depend on are not stored for it."""
    active_inputs = tuple(flag and differentiable(aval_of(arg)) for flag, arg in zip(nonzero, primals, strict=True))
    linearized = _linearized(function, active_inputs, primals, reverse=True)
    linearization = linearized.linearization
    needed = linearization.needed_inputs if is_vjp else (True,) * len(primals)
    avals, n_needed = [*map(aval_of, primals)], sum(needed)

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        # A transpose reads only the needed arguments; zeros stand in for the others.
        zeros = [arg if flag else zeros_like_aval(arg) for arg, flag in zip(avals, needed, strict=True)]
        args = merge(needed, residuals[:n_needed], zeros)
        return linearized.tangents(args, residuals[n_needed:], select(active_inputs, tangents))

    residuals = [*select(needed, primals), *map(jnp.asarray, linearized.residuals)]
    return linearized.outputs, list(linearization.active_outputs), residuals, tangents_of


def _call_batch(
    axis_data: Any, args: Arrays, dims: Sequence[Any], *, function: DifferentiableFunction, **_: Any
) -> tuple[Arrays, Sequence[Any]]:
    """The batching rule: the function's own rule if it has one, else `Batched`."""
    axis = BatchAxis.of(axis_data)
    flags = tuple(dim is not None for dim in dims)
    if not any(flags) and axis.name is None:  # with a named axis, results may depend on the index in the batch
        results = call(function, args)
        return results, [None] * len(results)
    args = _batch_first(axis, args, dims, flags)
    batched = function.batched(axis, flags, args)
    if batched is None:
        batched_function = Batched(function, axis, flags)
        return call(batched_function, args), in_axes_of(batched_function.batched_results(args))
    loop, loop_args, out_axes = batched
    return call(loop, loop_args), out_axes


def _call_transpose(cotangents: Arrays, *args: Array, function: DifferentiableFunction, **_: Any) -> Sequence[Any]:
    """The transpose of a function that is linear in some arguments, such as a matrix product computed row by row."""
    linear = tuple(map(ad.is_undefined_primal, args))
    avals = [arg.aval if flag else aval_of(arg) for arg, flag in zip(args, linear, strict=True)]
    program = function.jaxpr(avals)

    def of_linear(*inputs: Array) -> Arrays:
        return list(jaxpr_as_fun(program)(*merge(linear, inputs, args)))

    bars = [ad.instantiate_zeros(bar) for bar in cotangents]
    transposed = iter(jax.linear_transpose(of_linear, *select(linear, avals))(bars))
    return [next(transposed) if flag else None for flag in linear]


def _call_dce(used: list[bool], eqn: Any) -> tuple[list[bool], Any]:
    """The equation of a call, without the arguments that its used results do not need."""
    function = eqn.params["function"]
    if eqn.effects or function.eager:
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    pruned, inputs = prune(function, [var.aval for var in eqn.invars], tuple(used))
    invars, outvars = select(inputs, eqn.invars), select(used, eqn.outvars)
    params = {**eqn.params, "function": pruned}
    return list(inputs), eqn.replace(invars=invars, outvars=outvars, params=params)


def _batch_first(axis: BatchAxis, args: Arrays, dims: Sequence[Any], flags: Flags) -> list[Array]:
    """The arguments, with the batch moved or broadcast to the first axis where the flag is set."""
    pairs = zip(args, dims, flags, strict=True)
    return [batching.bdim_at_front(arg, dim, axis.size) if flag else jnp.asarray(arg) for arg, dim, flag in pairs]


ad.primitive_jvps[_call_p] = _call_jvp
register_linearization(_call_p, _call_linearize)
partial_eval.dce_rules[_call_p] = _call_dce
ad.primitive_transposes[_call_p] = _call_transpose
# "Fancy" batching rules (since 0.4.36) receive the axis, not just its size.
batching.fancy_primitive_batchers[_call_p] = _call_batch
mlir.register_lowering(_call_p, mlir.lower_fun(_run, multiple_results=True))


# The second primitive maps tangents of active inputs to tangents of active outputs. Its arguments are those of the
# function, the residuals, and the tangents, in this order; only its transpose reads the residuals.

_jvp_p = Primitive("remat_jvp")
_jvp_p.multiple_results = True


def _apply(linearization: Linearization, n_residuals: int, args: Arrays) -> list[Array]:
    """The tangents of the active outputs."""
    placing = _placing(linearization.function)
    return list(_jvp_p.bind(*args, linearization=linearization, n_residuals=n_residuals, placing=placing))


def _run_jvp(*args: Array, linearization: Linearization, n_residuals: int, **_: Any) -> Arrays:
    count = len(linearization.active_inputs)
    return list(linearization.jvp(args[:count], args[count + n_residuals :]))


_run_jvp_compiled = jax.jit(_run_jvp, static_argnames=("linearization", "n_residuals"))


@_jvp_p.def_impl
def _jvp_impl(*args: Array, linearization: Linearization, n_residuals: int, **_: Any) -> Arrays:
    run = _run_jvp if linearization.eager else _run_jvp_compiled
    return run(*args, linearization=linearization, n_residuals=n_residuals)


@_jvp_p.def_effectful_abstract_eval
def _jvp_abstract_eval(*args: Array, linearization: Linearization, n_residuals: int, **_: Any) -> Any:
    run = partial(_run_jvp, linearization=linearization, n_residuals=n_residuals)
    try:
        program = jax.make_jaxpr(run)(*map(aval_of, args))
    except TypeError:
        # The tangents of a jax.custom_vjp rule cannot be batched: JAX never computes them, it transposes them member by
        # member.
        if not linearization.has_custom_rules:
            raise
        inputs = [*map(aval_of, args[: len(linearization.active_inputs)])]
        avals = linearization.output_avals(inputs)
        tangents = [aval.to_tangent_aval() for aval in select(linearization.active_outputs, avals)]
        return tangents, linearization.function.jaxpr(inputs).effects
    return program.out_avals, program.effects


def _jvp_jvp(
    primals: Arrays, tangents: Arrays, *, linearization: Linearization, n_residuals: int, **_: Any
) -> tuple[Arrays, Arrays]:
    """The JVP rule: linear in tangents alone, else through `differentiable_jvp`."""
    count = len(linearization.active_inputs)
    active_inputs = tuple(not isinstance(tangent, ad.Zero) for tangent in tangents)
    if not any(active_inputs[:count]):  # linear: only the tangents have tangents
        args, inner = primals[: count + n_residuals], primals[count + n_residuals :]
        outer = [ad.instantiate_zeros(tangent) for tangent in tangents[count + n_residuals :]]
        inner_dot, outer_dot = (_apply(linearization, n_residuals, [*args, *dots]) for dots in (inner, outer))
        return inner_dot, outer_dot

    def differentiable_jvp(*active: Array) -> Arrays:
        args = merge(active_inputs, active, primals)
        return list(linearization.differentiable_jvp(args[:count], args[count + n_residuals :]))

    return jax.jvp(differentiable_jvp, tuple(select(active_inputs, primals)), tuple(select(active_inputs, tangents)))


def _jvp_transpose(
    cotangents: Arrays, *args: Array, linearization: Linearization, n_residuals: int, **_: Any
) -> Sequence[Any]:
    nonzero = tuple(not isinstance(cotangent, ad.Zero) for cotangent in cotangents)
    inputs = args[: len(linearization.active_inputs) + n_residuals]
    assert not any(map(ad.is_undefined_primal, inputs)), "tangents do not flow through arguments"
    if not any(nonzero):
        return [None] * len(args)
    vjp = VJP(linearization, nonzero, n_residuals)
    results = call(vjp, [*inputs, *select(nonzero, cotangents)])
    tangents = args[len(inputs) :]
    return [None] * len(inputs) + [_typed_like(bar, tangent) for bar, tangent in zip(results, tangents, strict=True)]


def _typed_like(cotangent: Array, tangent: Any) -> Array:
    """The cotangent, weakly typed if the tangent is, as that of a Python number is."""
    aval = tangent.aval if ad.is_undefined_primal(tangent) else aval_of(tangent)
    if not aval.weak_type or aval_of(cotangent).weak_type:
        return cotangent
    # There is no public way to make a type weak, but the transpose of making it strong does.
    result: Array = jax.linear_transpose(lambda x: lax.convert_element_type(x, x.dtype), aval)(cotangent)[0]
    return result


def _jvp_batch(
    axis_data: Any, args: Arrays, dims: Sequence[Any], *, linearization: Linearization, n_residuals: int, **_: Any
) -> tuple[Arrays, Sequence[Any]]:
    axis = BatchAxis.of(axis_data)
    count, flags = len(linearization.active_inputs), tuple(dim is not None for dim in dims)
    extra = count + linearization.extra_inputs  # tables that all members share
    function = Batched(linearization.function, axis, flags[:count])
    residuals, tangents = flags[extra : count + n_residuals], flags[count + n_residuals :]
    # A tangent may be batched where its result is not, so all results are batched.
    outputs = (True,) * linearization.n_outputs
    batched = BatchedLinearization(function, linearization, outputs, residuals, tangents)
    results = _apply(batched, n_residuals, _batch_first(axis, args, dims, flags))
    return results, [0] * len(results)


ad.primitive_jvps[_jvp_p] = _jvp_jvp
ad.primitive_transposes[_jvp_p] = _jvp_transpose
batching.fancy_primitive_batchers[_jvp_p] = _jvp_batch
mlir.register_lowering(_jvp_p, mlir.lower_fun(_run_jvp, multiple_results=True))


def _call_program(args: Arrays, *, function: DifferentiableFunction, **_: Any) -> ClosedJaxpr:
    return function.jaxpr(args)


def _jvp_program(args: Arrays, **params: Any) -> ClosedJaxpr:
    return jax.make_jaxpr(partial(_run_jvp, **params))(*map(aval_of, args))


for _primitive, _program_of in ((_call_p, _call_program), (_jvp_p, _jvp_program)):
    register_checks(_primitive, _program_of)  # jax.experimental.checkify checks what they compute
    register_discharge(_primitive, _program_of)
