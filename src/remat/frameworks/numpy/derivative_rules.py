"""The derivative rules of a loop, registered with autograd: first order by the reverse sweep, more by loops again.

They stand apart from the primitive, since derivatives beyond the first run loops of that primitive themselves.
"""

from collections.abc import Callable, Sequence
from typing import Any

from autograd.extend import defjvp_argnums, defvjp_argnums

from remat.frameworks.numpy.leaves import is_boxed
from remat.frameworks.numpy.multiple_results import sparse_entries
from remat.frameworks.numpy.primitive import loop_primitive
from remat.frameworks.numpy.second_order import adjoint, tangent

__all__: list[str] = []


def _vjp(argnums: Sequence[int], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    call, leaves, indices = args[0], args[1:], [argnum - 1 for argnum in argnums]

    def vjp(cotangents: Any) -> Sequence[Any]:
        entries = sparse_entries(cotangents)
        if is_boxed(cotangents) or any(map(is_boxed, leaves)):
            return adjoint(call, leaves, entries, indices)
        gradients: list[Any] = call.reverse(leaves, entries, indices)
        return gradients

    return vjp


def _jvp(argnums: Sequence[int], tangents: Sequence[Any], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    call, leaves = args[0], args[1:]
    by_leaf = dict(zip([argnum - 1 for argnum in argnums], tangents, strict=True))
    return tangent(call, leaves, by_leaf)


defvjp_argnums(loop_primitive, _vjp)
defjvp_argnums(loop_primitive, _jvp)
