"""Leaves of NumPy: arrays and numbers, plain or in autograd's boxes; their specs, copies, sizes and fingerprints.

In: values as a step takes and returns them. Out: an `ArraySpec` for each leaf to check later values against, private
copies, and one fingerprint a leaf, by which a recomputed value is compared with the first.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.builtins import DictBox, SequenceBox
from autograd.tracer import getval, isbox

from remat.errors import StepError
from remat.execute.fingerprint import fingerprint, relative_difference
from remat.pytree import TreeDef
from remat.pytree import flatten as flatten_value

__all__ = [
    "ArraySpec",
    "astype",
    "copy",
    "empty",
    "ensure_writable",
    "fast_match",
    "fingerprint",
    "flatten",
    "frozen_copy",
    "is_boxed",
    "matches_spec",
    "mismatch",
    "nbytes",
    "prepend",
    "readonly_view",
    "reject_tracer",
    "spec_of",
    "stack",
    "unpack",
]

_RANKS = "biufc"
_PYTHON = {bool: "b", int: "i", float: "f", complex: "c"}


def unpack(value: Any) -> Any:
    """Autograd's boxed tuples, lists and dicts as plain ones of boxes; anything else as it is."""
    kind = type(value)
    if kind is SequenceBox:
        inside = type(getval(value))
        parts = [value[i] for i in range(len(value))]
        return inside._make(parts) if hasattr(inside, "_make") else inside(parts)
    if kind is DictBox:
        return {key: value[key] for key in value}
    return value


def flatten(value: Any) -> tuple[list[Any], TreeDef]:
    """The leaves of a value, boxed or not, and its structure."""
    return flatten_value(value, unpack)


def stack(rows: Sequence[Any]) -> Any:
    """One array of several, along a new first axis."""
    return anp.stack(list(rows))


def prepend(first: Any, rows: Any) -> Any:
    """An array with one more row, the first."""
    return anp.concatenate([anp.expand_dims(first, 0), rows])


def is_boxed(leaf: Any) -> bool:
    """Whether autograd is tracing this leaf."""
    return bool(isbox(leaf))


@dataclass(frozen=True)
class ArraySpec:
    """What a leaf looks like: shape and dtype; a Python number is `weak`, its dtype may give way to another."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    weak: bool = False

    @classmethod
    def of(cls, leaf: Any, name: str) -> "ArraySpec":
        """The looks of a leaf; what is no array and no number raises a StepError that names it."""
        value = getval(leaf)
        kind = type(value)
        if kind in _PYTHON:
            return cls((), np.dtype(kind), weak=True)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _RANKS:
            if isinstance(value, np.ndarray) and kind is not np.ndarray and not isinstance(value, np.memmap):
                raise StepError(f"{name} is {_type_name(kind)}: give np.asarray of it, or another plain array")
            return cls(value.shape, value.dtype)
        of_dtype = f" of dtype {value.dtype}" if isinstance(value, np.ndarray) else ""
        raise StepError(
            f"{name} is {_type_name(kind)}{of_dtype}: a leaf must be a NumPy array or a number"
            + (": give numpy.arange" if kind is range else "")
            + (". Give init as arrays of JAX, so that it is a loop of JAX" if kind.__module__.startswith("jax") else "")
            + ". Tuples, lists, dicts, named tuples and dataclasses are taken apart; let the step close over the rest"
        )

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can flow through such a leaf: real and complex floats."""
        return self.dtype.kind in "fc"

    @property
    def eps(self) -> float:
        """The relative spacing of its numbers."""
        return float(np.finfo(self.dtype).eps) if self.differentiable else 2.0**-52

    def promotes_to(self, other: "ArraySpec") -> bool:
        """Whether a value like `other` may follow one like this: the same, but for the dtype of a Python number."""
        if self.shape != other.shape or self.dtype == other.dtype:
            return self.shape == other.shape
        return self.weak and self.rank <= other.rank

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def promoted(self, other: "ArraySpec") -> "ArraySpec":
        """What to hold later values against, when one like `other` has followed: a Python number may have widened."""
        return other if self.weak and self != other and self.rank <= other.rank else self

    def advice(self, other: "ArraySpec", name: str) -> str:
        """What to do if one like `other` follows and must not."""
        if self.shape != other.shape:
            return ""
        if self.rank < other.rank:
            return f"; start with {other.dtype.name}"
        return f"; cast it, as in {name}.astype({self.dtype.name!r})"

    @property
    def rank(self) -> int:
        """Where the kind of dtype stands among bool, int, float and complex."""
        return _RANKS.index(self.dtype.kind)


def spec_of(leaf: Any, name: str) -> ArraySpec:
    """The looks of a leaf; what is no array and no number raises a StepError that names it."""
    return ArraySpec.of(leaf, name)


def matches_spec(leaf: Any, spec: ArraySpec) -> bool:
    """Whether a leaf, boxed or not, is an array that looks exactly like that."""
    plain = getval(leaf)
    return type(plain) is np.ndarray and plain.shape == spec.shape and plain.dtype == spec.dtype


def empty(count: int, spec: ArraySpec, like: Any) -> Any:
    """Room for so many leaves."""
    return np.empty((count, *spec.shape), spec.dtype)


def astype(held: Any, spec: ArraySpec) -> Any:
    """An array of leaves, in the dtype of others."""
    return held.astype(spec.dtype)


def reject_tracer(leaf: Any, name: str) -> None:
    """Raise a StepError if a leaf is traced although all that goes into the step is plain."""
    if is_boxed(leaf):
        raise StepError(
            f"{name} is still traced by autograd where it must not be: the step uses a traced variable that remat "
            "could not find, or something made from one in another call of it (a cache, a cached_property, a log). "
            "Compute it in every call or before the loop, and pass it through init or xs, or close over it directly: "
            "closures, partials, attributes, items of lists and dicts, and globals are searched"
        )


def fast_match(spec: ArraySpec) -> Callable[[Any], bool]:
    """A fast test for plain leaves like that."""
    shape, dtype, array = spec.shape, spec.dtype, np.ndarray
    if shape:
        return lambda value: type(value) is array and value.shape == shape and value.dtype == dtype
    rank = _RANKS.index(dtype.kind)
    kinds = {dtype.type, *(kind for kind, letter in _PYTHON.items() if _RANKS.index(letter) <= rank)}
    return lambda value: (
        type(value) in kinds or (type(value) is array and value.shape == shape and value.dtype == dtype)
    )


def copy(leaf: Any) -> Any:
    """A private copy that may be written into; numbers are as they are."""
    return np.array(leaf, order="K") if isinstance(leaf, np.ndarray) else leaf


def frozen_copy(leaf: Any) -> Any:
    """A private copy that nobody can write into; numbers are that already."""
    leaf = copy(leaf)
    if isinstance(leaf, np.ndarray):
        leaf.flags.writeable = False
    return leaf


def readonly_view(leaf: Any) -> Any:
    """The same numbers, seen through a view that nobody can write into."""
    if isinstance(leaf, np.ndarray):
        leaf = leaf.view()
        leaf.flags.writeable = False
    return leaf


def ensure_writable(leaf: Any) -> Any:
    """The leaf, or a copy of it if it cannot be written into: for what is given to the caller."""
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.writeable else leaf


def nbytes(leaf: Any) -> int:
    """Bytes of a leaf, its Python object included."""
    return leaf.nbytes + header(leaf) if isinstance(leaf, np.ndarray) else sys.getsizeof(leaf)


def header(array: Any) -> int:
    """Bytes of an array beside its numbers."""
    return sys.getsizeof(array) - (array.nbytes if array.flags.owndata else 0)


def mismatch(leaf: Any, noted: float, tolerance: float) -> float:
    """How far a leaf is from the one that was summed up, relative to its size; 0 where rounding explains it."""
    found = fingerprint(leaf)
    return 0.0 if found == noted else relative_difference(found, noted, fingerprint(np.abs(leaf)), tolerance)


def _type_name(kind: type) -> str:
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
