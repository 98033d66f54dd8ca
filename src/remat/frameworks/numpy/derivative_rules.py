"""The derivative rules of a loop, registered with autograd: first order by the reverse sweep, more by loops again.

They stand apart from the primitive, since derivatives beyond the first run loops of that primitive themselves.
"""

from collections.abc import Callable, Sequence

from autograd.extend import defjvp_argnums, defvjp_argnums

from remat.frameworks.numpy.leaves import is_boxed
from remat.frameworks.numpy.multiple_results import sparse_entries
from remat.frameworks.numpy.primitive import loop_primitive
from remat.frameworks.numpy.second_order import adjoint, tangent
from remat.pytree import Leaf, PyTree

__all__: list[str] = []


def _vjp(argnums: Sequence[int], ans: Leaf, args: Sequence[Leaf], kwargs: object) -> Callable[[PyTree], Sequence[Leaf]]:
    call, leaves, indices = args[0], args[1:], [argnum - 1 for argnum in argnums]

    def vjp(cotangents: PyTree) -> Sequence[Leaf]:
        entries = sparse_entries(cotangents)
        if is_boxed(cotangents) or any(map(is_boxed, leaves)):
            return adjoint(call, leaves, entries, indices)
        gradients: list[Leaf] = call.reverse(leaves, entries, indices)
        return gradients

    return vjp


def _jvp(argnums: Sequence[int], tangents: Sequence[Leaf], ans: Leaf, args: Sequence[Leaf], kwargs: object) -> PyTree:
    call, leaves = args[0], args[1:]
    by_leaf = dict(zip([argnum - 1 for argnum in argnums], tangents, strict=True))
    return tangent(call, leaves, by_leaf)


defvjp_argnums(loop_primitive, _vjp)
defjvp_argnums(loop_primitive, _jvp)
