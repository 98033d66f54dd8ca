"""Whether a traced step computes with the numbers of a range what Python does, whose integers have no bounds.

The rule: the bounds of each integer that is computed from numbers of a range and Python's own integers are followed
through the program of the step. One that may leave its dtype, a power, a shift to the left, and a division by what may
be zero, which Python raises an error for, are not the same; nor is the sum of two comparisons, which is
`or` in JAX. What is computed with arrays is an array in plain JAX, too. What it can miss: products of such integers
inside of another loop, where that one does not carry them. The cost: a trace of the step.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from remat.frameworks.jax.avals import ClosedJaxpr, Literal, Tracer, operation_name
from remat.pytree import PyTree

__all__ = ["stays_within_bounds"]

Bounds: TypeAlias = tuple[int, int] | None  # None: an array, or what is not followed

_SAME = frozenset({"broadcast_in_dim", "reshape", "squeeze", "copy", "stop_gradient"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "max", "min", "select_n", "sign", "abs"})
_TESTS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_PROGRAMS = frozenset({"jaxpr", "call_jaxpr", "cond_jaxpr", "branches", "function"})  # parameters of loops and calls


class _Unbounded(Exception):
    """Something that Python's integers would compute otherwise."""


def stays_within_bounds(
    step: Callable[[PyTree, PyTree], object], carry: PyTree, x: PyTree, ranges: Sequence[range | None]
) -> bool:
    """Whether a step does with the numbers of these ranges, which are leaves of `x`, what Python would do."""
    program = jax.make_jaxpr(lambda carry, x: step(carry, x)[0])(carry, x)  # type: ignore[index]
    first = len(program.in_avals) - len(ranges)
    bounds: list[Bounds] = [None] * first
    for numbers in ranges:
        bounds.append((min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])) if numbers else None)
    try:
        for aval, each in zip(program.in_avals, bounds, strict=True):
            _check(aval, each)
        _follow(program, bounds)
    except _Unbounded:
        return False
    return True


def _check(aval: Any, bounds: Bounds) -> None:
    if bounds is not None and jnp.issubdtype(aval.dtype, jnp.integer):
        limits = jnp.iinfo(aval.dtype)
        if bounds[0] < limits.min or bounds[1] > limits.max:
            raise _Unbounded


def _follow(program: ClosedJaxpr, given: Sequence[Bounds]) -> list[Bounds]:
    """The bounds of the results of a program."""
    known: dict[Any, Bounds] = dict(zip(program.jaxpr.invars, given, strict=True))
    known |= {var: _of_constant(value) for var, value in zip(program.jaxpr.constvars, program.consts, strict=True)}
    for eqn in program.jaxpr.eqns:
        ins = [_of_constant(var.val) if isinstance(var, Literal) else known.get(var) for var in eqn.invars]
        if all(each is None for each in ins):
            continue
        inner = eqn.params.get("jaxpr")
        if isinstance(inner, ClosedJaxpr) and operation_name(eqn) in ("jit", "pjit", "closed_call"):
            outs = _follow(inner, ins)
        else:
            outs = [_result(eqn, ins)] * len(eqn.outvars)
        for var, bounds in zip(eqn.outvars, outs, strict=True):
            if bounds is not None and var.aval.shape == ():
                _check(var.aval, bounds)
                known[var] = bounds
    return [_of_constant(v.val) if isinstance(v, Literal) else known.get(v) for v in program.jaxpr.outvars]


def _of_constant(value: Any) -> Bounds:
    if np.shape(value) or not isinstance(value, int | float | np.number | np.ndarray | jax.Array):
        return None
    if isinstance(value, Tracer) or not np.isfinite(value):
        return None
    return int(np.floor(float(value))), int(np.ceil(float(value)))


def _result(eqn: Any, ins: Sequence[Bounds]) -> Bounds:
    """The bounds of the result of one operation, some of whose operands have bounds."""
    name = operation_name(eqn)
    whole = [jnp.issubdtype(var.aval.dtype, jnp.integer) and var.aval.shape == () for var in eqn.outvars]
    if not _PROGRAMS.isdisjoint(eqn.params):
        if any(whole):  # it may carry one from step to step
            raise _Unbounded
        return None
    known = [each for each in ins if each is not None]
    if len(known) < len(ins):  # with an array
        return None
    if name in _TESTS:
        return 0, 1
    if name in ("div", "rem") and known[1][0] <= 0 <= known[1][1]:
        raise _Unbounded
    if name == "convert_element_type":  # to a float, too, which others may be divided by
        return known[0]
    if name in ("or", "not") and not whole[0]:  # the sum of two truth values, which Python counts, and `~`
        raise _Unbounded
    if not whole[0]:
        return None
    if name in _SAME:
        return known[0]
    if name in _ARITHMETIC:
        return _arithmetic(name, known)
    sizes = [max(abs(low), abs(high)) for low, high in known]
    if name in ("div", "rem") or name.startswith("shift_right"):
        return -sizes[0], sizes[0]
    if name == "integer_pow":
        return -(sizes[0] ** eqn.params["y"]), sizes[0] ** eqn.params["y"]
    if name in ("and", "or", "xor", "not"):
        most: int = 2 ** max(sizes).bit_length()
        return -most, most - 1
    raise _Unbounded  # a power, a shift to the left, and what else there may be


def _arithmetic(name: str, ins: Sequence[tuple[int, int]]) -> tuple[int, int]:
    (a, b), (c, d) = ins[0], ins[-1]
    if name == "add":
        return a + c, b + d
    if name == "sub":
        return a - d, b - c
    if name == "mul":
        corners = a * c, a * d, b * c, b * d
        return min(corners), max(corners)
    if name == "neg":
        return -b, -a
    if name == "abs":
        return 0, max(abs(a), abs(b))
    if name == "sign":
        return -1, 1
    parts = ins[1:] if name == "select_n" else ins  # of max, min, select_n
    return min(low for low, _ in parts), max(high for _, high in parts)
