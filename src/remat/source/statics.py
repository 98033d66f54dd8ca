"""Values that are no arrays and are carried all the same: strings, None, enums, and names without a value.

The rule: such a value is interned in a table of the loop, and its place there is carried, an integer. Equal values of
one type have one place, so a recomputed step finds the places of the first run. A value that was static and is not any
more, or the other way round, changes the structure of the carry; the turn in which it does so runs in place.

What it can miss: nothing; other objects are refused by the loop. The cost, for loops that carry one: two calls a turn.
"""

import enum
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from remat.errors import StepError
from remat.execute.stop import STOP
from remat.pytree import TreeDef, flatten
from remat.source.ran import Step

__all__ = ["UNBOUND", "OutputTable", "StaticTable", "is_static"]

_TYPES = (str, bytes, enum.Enum, Fraction, Decimal, slice, frozenset, type(...))
_EXACT = 2**53  # larger integers are no exact floats


class _Unbound:
    def __repr__(self) -> str:
        return "no value"

    def __reduce__(self) -> str:
        return "UNBOUND"


UNBOUND = _Unbound()


class _NoLongerStatic:
    """In the place of a static value: something that is none. No framework takes it, so the loop says which step."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def is_static(leaf: Any) -> bool:
    """Whether a leaf is a value that a loop carries by its place in a table."""
    if leaf is None or leaf is UNBOUND or isinstance(leaf, _TYPES):
        return True
    return type(leaf) is int and abs(leaf) > _EXACT


class StaticTable:
    """The static values of one loop, and which places of its carry have them."""

    __slots__ = ("_places", "_trees", "_values", "any")

    def __init__(self, values: Sequence[Any], unpack: Callable[[Any], Any]) -> None:
        self._places: dict[Any, int] = {}
        self._values: list[Any] = []
        # By value: None if it has no static leaf, True if it is one, else its structure and which leaves are static.
        self._trees: list[Any] = [self._look_at(value, unpack) for value in values]
        self.any = any(tree is not None for tree in self._trees)

    @staticmethod
    def _look_at(value: Any, unpack: Callable[[Any], Any]) -> Any:
        if is_static(value):
            return True
        leaves, tree = flatten(value, unpack)
        static = [is_static(leaf) for leaf in leaves]
        return (tree, static) if any(static) else None

    def encode(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values as a framework takes them."""
        return tuple(
            value if tree is None else self._encode(value, tree)
            for value, tree in zip(values, self._trees, strict=True)
        )

    def _encode(self, value: Any, tree: Any) -> Any:
        if tree is True:
            return self._place(value)
        structure, static = tree
        try:
            leaves = structure.flatten_like(value, "carry")
        except Exception:  # another structure: the loop says which step, and what it is now
            return value
        return structure.unflatten(
            [self._place(leaf) if is_it else leaf for leaf, is_it in zip(leaves, static, strict=True)]
        )

    def _place(self, value: Any) -> Any:
        if not (is_static(value) or type(value) is int):
            return _NoLongerStatic(value)
        key = type(value), repr(value) if isinstance(value, slice) else value
        if key not in self._places:
            self._places[key] = len(self._values)
            self._values.append(value)
        return self._places[key]

    def decode(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values as the program has them."""
        return tuple(
            value if tree is None else self._decode(value, tree)
            for value, tree in zip(values, self._trees, strict=True)
        )

    def _decode(self, value: Any, tree: Any) -> Any:
        if tree is True:
            return self._values[int(value)]
        structure, static = tree
        assert isinstance(structure, TreeDef)
        leaves = structure.flatten_like(value, "carry")
        return structure.unflatten(
            [self._values[int(leaf)] if is_it else leaf for leaf, is_it in zip(leaves, static, strict=True)]
        )

    def wrap(self, step: Step) -> Step:
        """The step on encoded carries."""
        decode, encode = self.decode, self.encode

        def encoded(carry: Any, x: Any) -> Any:
            out = step(decode(carry), x)
            return out if out[0] is STOP else (encode(out[0]), out[1])

        return encoded


class OutputTable:
    """Outputs of a step for lists: numbers that are Python's own, and static values, come out as they went in."""

    __slots__ = ("_table", "_traced", "_trees")

    def __init__(self, *, traced: bool = False) -> None:
        self._traced = traced
        self._table = StaticTable((), lambda value: value)
        self._trees: list[tuple[TreeDef, list[bool]]] | None = None

    def encode(self, outputs: Sequence[Any], unpack: Callable[[Any], Any]) -> tuple[Any, ...]:
        """The outputs of a turn as a framework takes them; the first ones decide which are static."""
        if self._trees is None:
            flat = [flatten(output, unpack) for output in outputs]
            self._trees = [(tree, [is_static(x) or type(x) in (int, bool) for x in leaves]) for leaves, tree in flat]
            whole = any(getattr(getattr(x, "dtype", None), "kind", "f") in "iub" for leaves, _ in flat for x in leaves)
            if self._traced and (whole or any(any(static) for _, static in self._trees)):
                raise StepError("an output is a number of Python's own or a text, which a trace turns into an array")
        return tuple(
            self._table._encode(output, tree) if any(tree[1]) else output
            for output, tree in zip(outputs, self._trees, strict=True)
        )

    def wrap(self, step: Step, lists: int, unpack: Callable[[Any], Any]) -> Step:
        """The step with encoded outputs; the first of them, so many, are for lists."""
        encode = self.encode

        def encoded(carry: Any, x: Any) -> Any:
            carry, outputs = step(carry, x)
            return carry, outputs if carry is STOP else (*encode(outputs[:lists], unpack), *outputs[lists:])

        return encoded

    def rows(self, number: int, stacked: Any, framework: Any) -> Callable[[int], Any]:
        """By turn: what it has put into a list."""
        leaves = flatten(stacked, framework.unpack)[0]
        assert self._trees is not None
        tree, static = self._trees[number]
        values = self._table._values
        rows = [
            [values[int(place)] for place in leaf] if is_static else framework.unstack(leaf)
            for leaf, is_static in zip(leaves, static, strict=True)
        ]
        return lambda k: tree.unflatten([row[k] for row in rows])
