"""Gradients of a function of arrays, by autograd; the default cotangent of the result is ones."""

from collections.abc import Callable, Sequence

from autograd import make_vjp
from autograd.builtins import tuple as ag_tuple
from autograd.extend import vspace
from autograd.tracer import getval

from remat.pytree import Leaf, PyTree

__all__ = ["gradients_of"]


def gradients_of(
    function: Callable[[Sequence[PyTree]], PyTree], values: Sequence[PyTree], init_grad: PyTree = None
) -> tuple[PyTree, ...]:
    """The gradients with respect to these values; `init_grad` is the cotangent of the result."""
    pull_back, result = make_vjp(function)(ag_tuple([_as_float(value) for value in values]))
    seed = vspace(getval(result)).ones() if init_grad is None else init_grad
    return tuple(pull_back(seed))


def _as_float(value: Leaf) -> Leaf:
    """Convert integers and bools to floats, since autograd has no gradient for them."""
    if isinstance(value, bool | int):
        return float(value)
    if getattr(getattr(value, "dtype", None), "kind", "f") in "iub":
        return value.astype(float)
    return value
