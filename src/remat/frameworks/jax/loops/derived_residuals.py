"""Residuals that are cheap functions of one array: the array is stored, and they are recomputed from it.

Rule: a residual that is a copy, a broadcast, a negation or a multiple of an array with no more bytes is replaced by
that array, which is stored once for all residuals derived from it. So `2·x`, saved by the rule of `x**2`, and a
broadcast row take no memory of their own, and XLA can fold the factor into the pullback. It misses functions of two
arrays, and values computed inside a jitted function. Cost: at most one operation per element, fused into the pullback.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax import lax

from remat.frameworks.jax.avals import Array, ClosedJaxpr, Literal, nbytes, run_equation, with_results
from remat.frameworks.jax.transforms.differentiable import Arrays

__all__ = ["Derivation", "without_derived"]

_CHEAP = {
    lax.add_p,
    lax.broadcast_in_dim_p,
    lax.convert_element_type_p,
    lax.mul_p,
    lax.neg_p,
    lax.reshape_p,
    lax.squeeze_p,
    lax.sub_p,
    lax.transpose_p,
}


class Derivation(NamedTuple):
    """For each residual, the number of the array that it is derived from, and the equations that derive it."""

    sources: tuple[int, ...]
    equations: tuple[tuple[Any, ...], ...]

    def residuals(self, stored: Arrays) -> list[Array]:
        """All residuals, derived from the stored arrays."""
        return [self._made(stored[k], eqns) for k, eqns in zip(self.sources, self.equations, strict=True)]

    @staticmethod
    def _made(value: Array, equations: Sequence[Any]) -> Array:
        for eqn in equations:
            value = run_equation(eqn, [var.val if isinstance(var, Literal) else value for var in eqn.invars])
        return value


def without_derived(program: ClosedJaxpr, n_outputs: int) -> tuple[ClosedJaxpr, Derivation]:
    """The program with each residual replaced by the array it derives from, and the derivations.

    Residuals are the results after the first `n_outputs`.
    """
    made_by = {var: eqn for eqn in program.jaxpr.eqns if eqn.primitive in _CHEAP for var in eqn.outvars}
    atoms: list[Any] = []
    numbers: dict[int, int] = {}  # by identity, since literals cannot be hashed
    sources, equations = [], []
    for residual in program.jaxpr.outvars[n_outputs:]:
        atom, eqns = _origin(residual, made_by)
        if id(atom) not in numbers:
            numbers[id(atom)] = len(atoms)
            atoms.append(atom)
        sources.append(numbers[id(atom)])
        equations.append(tuple(eqns))
    results = [*program.jaxpr.outvars[:n_outputs], *atoms]
    return with_results(program, results), Derivation(tuple(sources), tuple(equations))


def _origin(atom: Any, made_by: dict[Any, Any]) -> tuple[Any, list[Any]]:
    """The array that a residual is derived from by cheap operations, and these operations in order."""
    eqns: list[Any] = []
    while not isinstance(atom, Literal) and atom in made_by:
        arrays = [var for var in made_by[atom].invars if not isinstance(var, Literal)]
        if len(arrays) != 1 or nbytes(arrays[0].aval) > nbytes(atom.aval):
            break
        eqns.insert(0, made_by[atom])
        atom = arrays[0]
    return atom, eqns
