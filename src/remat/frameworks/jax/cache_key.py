"""What is known of a program, and what tells it from another: what was compiled for it serves an equal one.

Two traces of a function make two programs, which are equal only if all their operations are. Parameters of operations
count as they compare: functions by themselves, so that rules of derivatives are never taken for each other.
"""

from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

__all__ = ["cache_key", "has_custom_rules"]


def cache_key(program: ClosedJaxpr) -> Any:
    """A key that equal programs share; None if it has constants, or parameters that cannot be compared."""
    try:
        key = _value(program)
        hash(key)
    except TypeError:
        return None
    return key


def _program(jaxpr: Jaxpr) -> Any:
    numbers: dict[Any, int] = {}

    def number(var: Any) -> Any:
        if hasattr(var, "val"):
            value = np.asarray(var.val)
            return var.aval, value.dtype, value.tobytes()
        return numbers.setdefault(var, len(numbers))

    inputs = [(number(var), var.aval) for var in jaxpr.invars]
    eqns = [
        (
            eqn.primitive,
            eqn.ctx,  # how it is run: which random numbers, on what mesh
            tuple(map(number, eqn.invars)),
            tuple((number(var), var.aval) for var in eqn.outvars),
            tuple((name, _value(value)) for name, value in sorted(eqn.params.items())),
        )
        for eqn in jaxpr.eqns
    ]
    return tuple(inputs), tuple(eqns), tuple(map(number, jaxpr.outvars))


def _value(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        if value.consts:
            raise TypeError("constants are not compared")
        return _program(value.jaxpr)
    if isinstance(value, Jaxpr):
        if value.constvars:
            raise TypeError("constants are not compared")
        return _program(value)
    if type(value) in (tuple, list):
        return tuple(map(_value, value))
    if type(value) is dict:
        return tuple((key, _value(part)) for key, part in value.items())
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, float):
        return float, np.float64(value).tobytes()
    return type(value), value


def has_custom_rules(value: Any) -> bool:
    """Whether a program, or a parameter of an operation, has calls with rules of differentiation of their own."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return any(
            eqn.primitive.name.startswith("custom_") or any(map(has_custom_rules, eqn.params.values()))
            for eqn in value.eqns
        )
    return type(value) in (tuple, list) and any(map(has_custom_rules, value))
