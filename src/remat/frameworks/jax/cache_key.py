"""Cache keys of jaxprs: equal programs share compiled code.

Two traces of one function make two programs, which are equal only if all of their operations are. Parameters count as
they compare: functions by identity, so that two custom derivative rules are never taken for each other.
"""

from typing import Any

import numpy as np

from remat.frameworks.jax.avals import ClosedJaxpr, Jaxpr, Literal, is_custom_rule, primitive_and_context
from remat.frameworks.jax.differentiable import DifferentiableFunction, Linearization
from remat.pytree import PyTree

__all__ = ["cache_key", "has_custom_rules"]


def cache_key(program: ClosedJaxpr) -> Any:
    """A key that equal programs share; None if a program has constants, or parameters that cannot be hashed."""
    try:
        key = _value_key(program)
        hash(key)
    except TypeError:
        return None
    return key


def _jaxpr_key(jaxpr: Jaxpr) -> Any:
    numbers: dict[Any, int] = {}  # variables are numbered by first use: their names differ from trace to trace

    def number(var: Any) -> Any:
        if isinstance(var, Literal):
            value = np.asarray(var.val)
            return var.aval, value.dtype, value.tobytes()  # bytes: -0.0 is not 0.0, and nan is itself
        return numbers.setdefault(var, len(numbers))

    inputs = [(number(var), var.aval) for var in jaxpr.invars]
    eqns = [
        (
            *primitive_and_context(eqn),
            tuple(map(number, eqn.invars)),
            tuple((number(var), var.aval) for var in eqn.outvars),
            tuple((name, _value_key(value)) for name, value in sorted(eqn.params.items())),
        )
        for eqn in jaxpr.eqns
    ]
    return tuple(inputs), tuple(eqns), tuple(map(number, jaxpr.outvars))


def _value_key(value: PyTree) -> Any:
    if isinstance(value, ClosedJaxpr):
        # Constants may be large arrays on a device, which would have to be copied to be compared.
        if value.consts:
            raise TypeError("constants are not compared")
        return _jaxpr_key(value.jaxpr)
    if isinstance(value, Jaxpr):
        if value.constvars:
            raise TypeError("constants are not compared")
        return _jaxpr_key(value)
    if type(value) in (tuple, list):
        return tuple(map(_value_key, value))
    if type(value) is dict:
        return tuple((key, _value_key(item)) for key, item in value.items())
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, float):
        return float, np.float64(value).tobytes()
    return type(value), value  # the type: 1, 1.0 and True are equal to Python, and not to a program


def has_custom_rules(value: PyTree) -> bool:
    """Whether a program, or a parameter of an operation, calls functions with custom_jvp or custom_vjp rules."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return any(is_custom_rule(eqn) or any(map(has_custom_rules, eqn.params.values())) for eqn in value.eqns)
    if isinstance(value, DifferentiableFunction | Linearization):  # a loop inside of this one
        return value.has_custom_rules
    return type(value) in (tuple, list) and any(map(has_custom_rules, value))
