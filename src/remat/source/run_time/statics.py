"""Carried values that are not arrays: strings, None, enums, and names without a value.

The rule: such a static value is interned in a table of the loop, and its place there, an integer, is carried. Equal
values of one type and text share a place, so a recomputed step finds the places of the first run. A value that stops or
starts being static changes the structure of the carry; the turn in which that happens runs in place. If a framework
would pass something other than Python floats to a step (autograd's boxes have another type, text and division by zero),
floats are carried as their bits, also an integer.

What it can miss: nothing; the loop refuses other objects. The cost, for loops that carry one: two calls per turn.
"""

import enum
import struct
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from remat.errors import StepError
from remat.execute.stop import STOP
from remat.pytree import TreeDef, flatten
from remat.source.run_time.ran import Step

__all__ = ["UNBOUND", "OutputTable", "StaticTable", "is_static"]

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


def _kind(leaf: Any, floats: bool) -> Any:
    """How a leaf is carried: True by its place, float by its bits, False unchanged."""
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
    return type(value), repr(value) if isinstance(value, slice | float | Decimal) else value


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", int(bits)))[0])


class StaticTable:
    """The static values of one loop, and their positions in its carry.

    `floats` are the numbers of the values whose Python floats stay floats; `became_traced` are those in which a step
    has replaced a float by something else.
    """

    __slots__ = ("_places", "_trees", "_values", "any", "became_traced")

    def __init__(
        self, values: Sequence[Any], unpack: Callable[[Any], Any], floats: Collection[int] = frozenset()
    ) -> None:
        self._places: dict[Any, int] = {}
        self._values: list[Any] = []
        self.became_traced: set[int] = set()
        # By value: None if it has no static leaf, its kind if it is a leaf, else its structure and the kinds of leaves.
        self._trees: list[Any] = [self._look_at(value, unpack, k in floats) for k, value in enumerate(values)]
        self.any = any(tree is not None for tree in self._trees)

    @staticmethod
    def _look_at(value: Any, unpack: Callable[[Any], Any], floats: bool) -> Any:
        kinds = [_kind(value, floats)]
        if kinds[0]:
            return kinds[0]
        leaves, tree = flatten(value, unpack)
        kinds = [_kind(leaf, floats) for leaf in leaves]
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
        if not (is_static(value) or type(value) in _NUMBERS):
            return _NoLongerStatic(value)
        key = _identity(value)
        if key not in self._places:
            self._places[key] = len(self._values)
            self._values.append(value)
        return self._places[key]

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
        return _float(leaf) if kind is float else self._values[int(leaf)]

    def wrap(self, step: Step) -> Step:
        """The step on encoded carries."""
        decode, encode = self.decode, self.encode

        def encoded(carry: Any, x: Any) -> Any:
            out = step(decode(carry), x)
            return out if out[0] is STOP else (encode(out[0]), out[1])

        return encoded


class OutputTable:
    """Outputs of a step for lists: Python numbers and static values come out unchanged."""

    __slots__ = ("_table", "_traced", "_trees")

    def __init__(self, *, traced: bool = False) -> None:
        self._traced = traced
        self._table = StaticTable((), lambda value: value)
        self._trees: list[tuple[TreeDef, list[bool]]] | None = None

    def encode(self, outputs: Sequence[Any], unpack: Callable[[Any], Any]) -> tuple[Any, ...]:
        """The outputs of a turn in the form that a framework takes; the first turn decides which are static."""
        if self._trees is None:
            flat = [flatten(output, unpack) for output in outputs]
            self._trees = [(tree, [is_static(x) or type(x) in (int, bool) for x in leaves]) for leaves, tree in flat]
            whole = any(getattr(getattr(x, "dtype", None), "kind", "f") in "iub" for leaves, _ in flat for x in leaves)
            if self._traced and (whole or any(any(static) for _, static in self._trees)):
                raise StepError("an output is a Python number or a string, which a trace turns into an array")
        return tuple(
            self._table._encode(output, tree) if any(tree[1]) else output
            for output, tree in zip(outputs, self._trees, strict=True)
        )

    def wrap(self, step: Step, lists: int, unpack: Callable[[Any], Any]) -> Step:
        """The step with encoded outputs; the first `lists` of them are for lists."""
        encode = self.encode

        def encoded(carry: Any, x: Any) -> Any:
            carry, outputs = step(carry, x)
            return carry, outputs if carry is STOP else (*encode(outputs[:lists], unpack), *outputs[lists:])

        return encoded

    def rows(self, number: int, stacked: Any, framework: Any) -> Callable[[int], Any]:
        """A function from a turn to the item that it has appended to a list."""
        leaves = flatten(stacked, framework.unpack)[0]
        assert self._trees is not None
        tree, static = self._trees[number]
        values = self._table._values
        rows = [
            [values[int(place)] for place in leaf] if is_static else framework.unstack(leaf)
            for leaf, is_static in zip(leaves, static, strict=True)
        ]
        return lambda k: tree.unflatten([row[k] for row in rows])
