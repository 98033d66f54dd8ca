"""Cache keys of jaxprs: equal programs share compiled code.

Two traces of a function give two programs, which are equal only if all of their operations are. Parameters are compared
with `==`, so functions compare by identity, and two custom derivative rules are never confused.
"""

from typing import Any

import numpy as np

from remat.frameworks.jax.avals import ClosedJaxpr, Jaxpr, Literal, is_custom_rule, primitive_and_context
from remat.frameworks.jax.transforms.differentiable import DifferentiableFunction, Linearization
from remat.pytree import PyTree

__all__ = ["cache_key", "has_custom_rules"]


def cache_key(program: ClosedJaxpr) -> Any:
    """A key that equal programs share; None if the program has constants or parameters that cannot be hashed."""
    try:
        key = _value_key(program)
        hash(key)
    except TypeError:
        return None
    return key


def _jaxpr_key(jaxpr: Jaxpr) -> Any:
    """The key of a jaxpr, which does not depend on the names of its variables."""
    numbers: dict[Any, int] = {}  # number variables by first use, since their names differ between traces

    def number(var: Any) -> Any:
        if isinstance(var, Literal):
            value = np.asarray(var.val)
            return var.aval, value.dtype, value.tobytes()  # bytes: -0.0 differs from 0.0, and nan equals itself
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
    """The key of a program or of a parameter; raises a TypeError for a program with constants."""
    if isinstance(value, ClosedJaxpr):
        # Constants may be large arrays on a device, which would have to be copied to the host to be compared.
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
    if isinstance(value, DifferentiableFunction | Linearization):  # another plan has other residuals
        return type(value), value, value.algorithm
    if isinstance(value, float):
        return float, np.float64(value).tobytes()
    return type(value), value  # with the type: 1, 1.0 and True are equal in Python, but not in a program


def has_custom_rules(value: PyTree) -> bool:
    """Whether a program, or a parameter of an operation, calls functions with custom_jvp or custom_vjp rules."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return any(is_custom_rule(eqn) or any(map(has_custom_rules, eqn.params.values())) for eqn in value.eqns)
    if isinstance(value, DifferentiableFunction | Linearization):  # a loop inside this program
        return value.has_custom_rules
    return type(value) in (tuple, list) and any(map(has_custom_rules, value))
