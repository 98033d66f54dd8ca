"""Carried values that are not arrays of the framework: strings, None, enums, names without a value, NumPy's on PyTorch.

The rule: such a static value is interned in a table of the loop, and its place there, an integer, is carried. Equal
values of one type and text share a place, so a recomputed step finds the places of the first run. A value that stops or
starts being static changes the structure of the carry; the turn in which that happens runs in place. If a framework
would pass something other than Python floats to a step (autograd's boxes have another type, text and division by zero),
floats are carried as their bits, also an integer. NumPy's arrays in a loop of PyTorch are carried as tensors, without a
gradient.

What it can miss: nothing; the loop refuses other objects. The cost, for loops that carry one: two calls per turn.
"""

import enum
import struct
from collections.abc import Collection, Sequence
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from typing import Any
from weakref import ref

import numpy as np

from remat.execute.stop import STOP
from remat.frameworks import Framework
from remat.pytree import TreeDef, flatten
from remat.source.run_time.ran import Step

__all__ = ["UNBOUND", "StaticTable", "foreign_types", "is_numbers", "is_static"]

_TYPES = frozenset({str, bytes, Fraction, Decimal, slice, frozenset, type(...)})  # not subclasses, which may hold more
_NUMBERS = (int, bool, float)  # Python numbers that may be appended to lists
_EXACT = 2**53  # larger integers are not exact as floats


class _Unbound:
    def __repr__(self) -> str:
        return "no value"

    def __reduce__(self) -> str:
        return "UNBOUND"


UNBOUND = _Unbound()


class _NoLongerStatic:
    """Replaces a carried value that is no longer static; no framework accepts it, so the error names the step."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def foreign_types(framework: Framework) -> tuple[type, ...]:
    """NumPy's types, if the framework does not take them as they are."""
    return (np.ndarray, np.generic) if framework.TRAITS.name == "torch" else ()


def is_numbers(leaf: Any, types: tuple[type, ...]) -> bool:
    """Whether a leaf is an array or a number of these types of NumPy, rather than of objects or texts."""
    return isinstance(leaf, types) and np.asarray(leaf).dtype.kind in "biufc"


def _kind(leaf: Any, floats: bool, foreign: tuple[type, ...]) -> Any:
    """How a leaf is carried: True by its place, float by its bits, np.ndarray as an array, False unchanged."""
    if is_numbers(leaf, foreign):
        return True if isinstance(leaf, np.generic) else np.ndarray
    return float if floats and type(leaf) is float else is_static(leaf)


def is_static(leaf: Any) -> bool:
    """Whether a loop carries a leaf by its place in a table."""
    if leaf is None or leaf is UNBOUND or type(leaf) in _TYPES or isinstance(leaf, enum.Enum):
        return True
    return type(leaf) is int and abs(leaf) > _EXACT


def _identity(value: Any) -> Any:
    """A key that only equal values of equal text have: 1.0 and 1.00 are two decimals, and {1} and {1.0} two sets."""
    if isinstance(value, frozenset):
        return type(value), frozenset(map(_identity, value))
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, sha256(value.tobytes()).digest()  # not another copy
    return type(value), repr(value) if isinstance(value, slice | float | Decimal) else value


def _copy(value: Any) -> Any:
    """The value itself, or a copy if it can be written into."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", int(bits)))[0])


class StaticTable:
    """The static values of one loop, and their positions in its carry.

    `floats` are the numbers of the values whose Python floats stay floats; `became_traced` are those in which a step
    has replaced a float by something else.
    """

    __slots__ = ("_foreign", "_framework", "_origins", "_places", "_trees", "_values", "any", "became_traced")

    def __init__(self, values: Sequence[Any], framework: Framework, floats: Collection[int] = frozenset()) -> None:
        self._framework, self._foreign = framework, foreign_types(framework)
        self._places: dict[Any, int] = {}
        self._values: list[Any] = []
        self._origins: list[ref[Any] | None] = []  # by place: the one array that came there
        self.became_traced: set[int] = set()
        # By value: None if it has no static leaf, its kind if it is a leaf, else its structure and the kinds of leaves.
        self._trees: list[Any] = [self._look_at(value, k in floats) for k, value in enumerate(values)]
        self.any = any(tree is not None for tree in self._trees)

    def _look_at(self, value: Any, floats: bool) -> Any:
        kinds = [_kind(value, floats, self._foreign)]
        if kinds[0]:
            return kinds[0]
        leaves, tree = flatten(value, self._framework.unpack)
        kinds = [_kind(leaf, floats, self._foreign) for leaf in leaves]
        return (tree, kinds) if any(kinds) else None

    def encode(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values in the form that a framework takes."""
        return tuple(
            value if tree is None else self._encode(value, tree, k)
            for k, (value, tree) in enumerate(zip(values, self._trees, strict=True))
        )

    def _encode(self, value: Any, tree: Any, number: int = 0) -> Any:
        if not isinstance(tree, tuple):
            return self._place(value, tree, number)
        structure, kinds = tree
        try:
            leaves = structure.flatten_like(value, "carry")
        except Exception:  # another structure: the loop's error names the step and the new structure
            return value
        return structure.unflatten(
            [self._place(leaf, kind, number) if kind else leaf for leaf, kind in zip(leaves, kinds, strict=True)]
        )

    def _place(self, value: Any, kind: Any, number: int) -> Any:
        if kind is float:
            if type(value) is float:
                return _bits(value)
            self.became_traced.add(number)
            return _NoLongerStatic(value)
        if kind is np.ndarray:
            return self._framework.stack([value])[0] if isinstance(value, np.ndarray) else _NoLongerStatic(value)
        return self.place(value)

    def place(self, value: Any) -> Any:
        """The place of a value in the table, if it is static or a number."""
        if not (is_numbers(value, self._foreign) or is_static(value) or type(value) in _NUMBERS):
            return _NoLongerStatic(value)
        key = _identity(value)
        if key not in self._places:
            self._places[key] = len(self._values)
            self._values.append(_copy(value))
            self._origins.append(ref(value) if isinstance(value, np.ndarray) else None)
        place = self._places[key]
        origin = self._origins[place]
        if origin is not None and origin() is not value:
            self._origins[place] = None
        return place

    def value(self, place: int) -> Any:
        """The value at a place: the object itself, if it was the only one that came there, and still exists."""
        origin = self._origins[place]
        found = None if origin is None else origin()
        return _copy(self._values[place]) if found is None else found

    def decode(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values in the form that the program has."""
        return tuple(
            value if tree is None else self._decode(value, tree)
            for value, tree in zip(values, self._trees, strict=True)
        )

    def _decode(self, value: Any, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return self._value(value, tree)
        structure, kinds = tree
        assert isinstance(structure, TreeDef)
        leaves = structure.flatten_like(value, "carry")
        return structure.unflatten(
            [self._value(leaf, kind) if kind else leaf for leaf, kind in zip(leaves, kinds, strict=True)]
        )

    def _value(self, leaf: Any, kind: Any) -> Any:
        if kind is np.ndarray:
            return leaf.detach().numpy().copy()
        return _float(leaf) if kind is float else self.value(int(leaf))

    def wrap(self, step: Step) -> Step:
        """The step on encoded carries."""
        decode, encode = self.decode, self.encode

        def encoded(carry: Any, x: Any) -> Any:
            out = step(decode(carry), x)
            return out if out[0] is STOP else (encode(out[0]), out[1])

        return encoded
