"""How a batch, tangents and arguments propagate to the results of a program, as JAX's own rules decide.

Rules: a result is batched if `jax.vmap` of the program batches it, and active if `jax.jvp` of the program gives it a
tangent that is not known to be zero. Both are found, as in `lax.scan`, by an identity at the end of the program that
notes what the transformation passes to it. Dependence alone would say too much (for `stop_gradient`, comparisons,
values that members share, and a jit inside the program) and too little (for mutable arrays). For a carry this is
repeated until nothing changes.

What they can miss: nothing that JAX itself does not miss. Cost: one trace of the program for each round, mostly one or
two rounds.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
from jax.sharding import Sharding

from remat.errors import StepError
from remat.frameworks.jax.avals import (
    Array,
    Aval,
    BatchAxis,
    ClosedJaxpr,
    Flags,
    Jaxpr,
    Literal,
    called_program,
    differentiable,
    in_axes_of,
    is_ref,
    jaxpr_as_fun,
    merge,
    operation_name,
    select,
    stacked_aval,
)
from remat.frameworks.jax.transforms.identities import observe
from remat.pytree import PyTree

__all__ = [
    "active_results",
    "batched_avals",
    "batched_results",
    "depends_on",
    "forwarded_inputs",
    "grow",
    "no_derivative_error",
    "places_values",
]


def batched_avals(avals: Sequence[Aval], axis: BatchAxis, flags: Flags) -> list[Aval]:
    """The avals, with the batch as first axis where the flag is set."""
    pairs = zip(avals, flags, strict=True)
    return [stacked_aval(aval, axis.size, axis.mesh_axis) if flag else aval for aval, flag in pairs]


def batched_results(function: Callable[..., Any], axis: BatchAxis, avals: Sequence[Aval], flags: Flags) -> Flags:
    """Which results of a function of flat arrays are batched if its flagged arguments are; `avals` are one member's."""
    noted: list[Flags] = []

    def observed(*args: Array) -> list[Array]:
        results = list(function(*args))
        noted[:] = [(False,) * len(results)]  # the answer if vmap traces no result, and never asks
        observe(results, lambda flags: noted.__setitem__(0, flags))
        return []

    jax.make_jaxpr(axis.vmap(observed, tuple(in_axes_of(flags))))(*batched_avals(avals, axis, flags))
    return noted[0]


@lru_cache(maxsize=64)
def _active_results(program: ClosedJaxpr, flags: Flags) -> Flags:
    noted: list[Flags] = [(False,) * len(program.out_avals)]

    def observed(*args: Array) -> list[Array]:
        def of_active(*active: Array) -> list[Array]:
            observe(jaxpr_as_fun(program)(*merge(flags, active, args)), lambda flags: noted.__setitem__(0, flags))
            return []

        active = tuple(select(flags, args))
        jax.jvp(of_active, active, active)
        return []

    if any(flags):
        try:
            jax.make_jaxpr(observed)(*program.in_avals)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise no_derivative_error(error) from error
    return tuple(flag and differentiable(aval) for flag, aval in zip(noted[0], program.out_avals, strict=True))


def no_derivative_error(error: Exception) -> StepError:
    """The StepError for a step that JAX cannot differentiate."""
    reason = str(error).partition("\n")[0]
    advice = "give it a derivative by jax.custom_vjp, or put jax.lax.stop_gradient around what goes into it"
    if "while_loop" in reason or "fori_loop" in reason:
        advice = "loops in a step whose length is not known when they are traced are remat.while_loop's"
    return StepError(f"the step cannot be differentiated: {reason} What to do: {advice}")


def active_results(program: ClosedJaxpr, flags: Flags) -> Flags:
    """Which results of a program have tangents if the flagged arguments have."""
    pairs = zip(flags, program.in_avals, strict=True)
    return _active_results(program, tuple(flag and differentiable(aval) for flag, aval in pairs))


def grow(results: Callable[[Flags], Flags], carry: Flags) -> tuple[Flags, Flags]:
    """The flags of a carry after any number of steps, and of the outputs; `results` gives the flags after one step."""
    while True:
        flags = results(carry)
        grown = tuple(a or b for a, b in zip(carry, flags[: len(carry)], strict=True))
        if grown == carry:
            return carry, flags[len(carry) :]
        carry = grown


def depends_on(program: ClosedJaxpr, flags: Sequence[bool]) -> Flags:
    """Which results of a program depend on flagged arguments.

    It looks inside jit and checkpoint. All results of any other call count as dependent if one of its arguments is.
    """
    return _depends_on(program.jaxpr, flags)


def _depends_on(jaxpr: Any, flags: Sequence[bool]) -> Flags:
    flagged = {var for var, flag in zip(jaxpr.invars, flags, strict=True) if flag}

    def is_flagged(var: Any) -> bool:
        return not isinstance(var, Literal) and var in flagged  # literals cannot be hashed

    for eqn in jaxpr.eqns:
        inputs = tuple(map(is_flagged, eqn.invars))
        if not any(inputs):
            continue
        inner, refs = called_program(eqn), [var for var in eqn.invars if is_ref(var)]
        if inner is None or refs:
            flagged.update(eqn.outvars)
            flagged.update(refs)  # a mutable array passes on what is written into it
        else:
            flagged.update(select(_depends_on(inner, inputs), eqn.outvars))
    return tuple(map(is_flagged, jaxpr.outvars))


def forwarded_inputs(jaxpr: Any) -> list[int | None]:
    """For each result of a jaxpr, the number of the argument that it returns unchanged, or None."""
    numbers = {var: k for k, var in enumerate(jaxpr.invars)}

    def number(var: Any) -> int | None:
        return None if isinstance(var, Literal) else numbers.get(var)

    for eqn in jaxpr.eqns:
        inner = called_program(eqn)
        if inner is None:
            continue
        for var, k in zip(eqn.outvars, forwarded_inputs(inner), strict=True):
            origin = None if k is None else number(eqn.invars[k])
            if origin is not None:
                numbers[var] = origin
    return [number(var) for var in jaxpr.outvars]


_PLACING = frozenset({"shard_map", "sharding_constraint", "device_put", "compute_on", "call_exported"})


@lru_cache(maxsize=64)
def places_values(program: ClosedJaxpr) -> bool:
    """Whether a program says where values are: on which devices, or in which memories."""
    return _places(program)


def _places(value: PyTree) -> bool:
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return any(operation_name(eqn) in _PLACING or any(map(_places, eqn.params.values())) for eqn in value.eqns)
    return any(map(_places, value)) if isinstance(value, tuple | list) else isinstance(value, Sharding)
