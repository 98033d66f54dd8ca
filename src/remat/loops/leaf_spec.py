"""The functions on leaves (arrays and numbers) that the loops need from a framework.

`LeafOps` is the framework's module of functions on leaves, such as `frameworks/numpy/leaves.py`; it is passed to the
loops as a value. A spec is the shape and dtype of one leaf: JAX calls it an aval, PyTorch the metadata of a tensor. If
two specs are equal, one leaf can be written into an array allocated for the other. A spec has:

    shape, differentiable, eps    of the leaf; eps is the relative spacing of its numbers
    weak                          whether it is a Python number, whose dtype yields to that of an array
    promotes_to(other)            whether a leaf of spec `other` may take its place in the carry
    promoted(other)               the spec that later leaves must match once one of spec `other` has taken its place
    advice(other, name)           the end of an error message: how to keep the leaf `name` from becoming `other`
"""

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["LeafOps"]


class LeafOps(Protocol):
    """A framework's functions on leaves."""

    def unpack(self, value: Any, /) -> Any:
        """A framework's own container as a plain one; any other value unchanged."""
        ...

    def spec_of(self, leaf: Any, name: str, /) -> Any:
        """The spec of a leaf; raises a StepError with its name if it is neither an array nor a number."""
        ...

    def matches_spec(self, leaf: Any, spec: Any, /) -> bool:
        """Whether a leaf has exactly this spec; False may also mean "not known": then `spec_of` decides."""
        ...

    def fast_match(self, spec: Any, /) -> Callable[[Any], bool]:
        """A fast predicate for plain leaves of this spec, for every leaf of every step; False as in `matches_spec`."""
        ...

    def empty(self, count: int, spec: Any, like: Any, /) -> Any:
        """An uninitialised array with `count` rows of this spec, on the device of the leaf `like`."""
        ...

    def astype(self, stacked: Any, spec: Any, /) -> Any:
        """Stacked rows, converted to the dtype of a spec."""
        ...

    def reject_tracer(self, leaf: Any, name: str, /) -> None:
        """Raise a StepError if a leaf is traced although all inputs of the step are plain: it leaks from a closure."""
        ...
