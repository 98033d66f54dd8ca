"""Programs in which loops with a budget in bytes plan within a smaller one.

A loop is an operation whose function knows its plan, anywhere in a program: also inside jit, conditions and
checkpoints. It misses loops in the rules of `jax.custom_vjp`, which are Python functions.
"""

from typing import Any

from remat.frameworks.jax.avals import ClosedJaxpr, Jaxpr
from remat.frameworks.jax.transforms.differentiable import DifferentiableFunction
from remat.pytree import PyTree

__all__ = ["limit_loops"]


def limit_loops(program: ClosedJaxpr, share: int) -> ClosedJaxpr:
    """The program with its loops planned within `share` bytes or the least that they need; itself if it has none."""
    limited: ClosedJaxpr = _limited(program, share)
    return limited


def _limited(value: PyTree, share: int) -> Any:
    if isinstance(value, DifferentiableFunction):
        return value.limited(share)
    if isinstance(value, ClosedJaxpr):
        eqns = _equations(value.jaxpr, share)
        return value if eqns is None else ClosedJaxpr(value.jaxpr.replace(eqns=eqns), value.consts)
    if isinstance(value, Jaxpr):
        eqns = _equations(value, share)
        return value if eqns is None else value.replace(eqns=eqns)
    if type(value) in (tuple, list):
        items = [_limited(item, share) for item in value]
        return value if _same(items, value) else type(value)(items)
    return value


def _equations(jaxpr: Any, share: int) -> list[Any] | None:
    """The equations with limited loops; None if there are no such loops."""
    eqns = []
    for eqn in jaxpr.eqns:
        params = {name: _limited(value, share) for name, value in eqn.params.items()}
        eqns.append(eqn if _same(params.values(), eqn.params.values()) else eqn.replace(params=params))
    return None if _same(eqns, jaxpr.eqns) else eqns


def _same(new: Any, old: Any) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))
