"""The items that turns append to lists, or put into arrays and dicts: stacked by a framework, and taken apart again.

The rule: a framework stacks arrays; what is no array of its own stays what it is. Strings, integers and, on PyTorch,
NumPy's arrays and numbers are kept in a table, and their places are stacked. So are Python floats, beside the numbers
themselves: one turn may append `0.0`, and another a differentiated array. What it can miss: an item that is static in
the first turn and an array in a later one; the loop refuses it. The cost: the table, for outputs that need one.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from remat.errors import StepError
from remat.execute.stop import STOP
from remat.frameworks import Framework
from remat.pytree import LEAF, TreeDef, flatten
from remat.source.run_time.ran import OutputRows, Step
from remat.source.run_time.statics import StaticTable, foreign_types, is_numbers, is_static

__all__ = ["OutputTable"]


_NUMBERS = (int, bool, float)


class OutputTable:
    """The outputs of a step in the form that a framework takes, and back."""

    __slots__ = ("_foreign", "_framework", "_lists", "_table", "_traces", "_trees")

    def __init__(self, framework: Framework, lists: int) -> None:
        self._framework, self._lists, self._table = framework, lists, StaticTable((), framework)
        self._traces, self._foreign = framework.TRAITS.has_scan_options, foreign_types(framework)
        # By output: its structure, and for each leaf True if it is static, float if it is a Python float, else False.
        self._trees: list[tuple[TreeDef, list[Any]]] | None = None

    def wrap(self, step: Step) -> Step:
        """The step with encoded outputs, followed by the places of its Python floats."""

        def encoded(carry: Any, x: Any) -> Any:
            carry, outputs = step(carry, x)
            return carry, outputs if carry is STOP else self._encoded(outputs)

        return encoded

    def _encoded(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        if self._trees is None:
            self._trees = self._look_at(outputs)
        places: list[int] = []
        encoded = [
            self._encode(output, tree, kinds, places) if any(kinds) else output
            for output, (tree, kinds) in zip(outputs, self._trees, strict=True)
        ]
        return *encoded, tuple(places)

    def _look_at(self, outputs: Sequence[Any]) -> list[tuple[TreeDef, list[Any]]]:
        """The structures of the outputs of the first turn, which decide which leaves are static."""
        flat = [flatten(output, self._framework.unpack) for output in outputs]
        trees = [(tree, [self._kind(leaf) for leaf in leaves]) for leaves, tree in flat]
        if not self._traces:
            return trees
        # Arrays take any numbers, but a list would get arrays in place of them.
        dtypes = [getattr(x, "dtype", None) for leaves, _ in flat[: self._lists] for x in leaves]
        if any(any(kinds) for _, kinds in trees[: self._lists]) or any(
            getattr(d, "kind", "f") in "iub" for d in dtypes
        ):
            raise StepError("an output is a Python number or a string, which a trace turns into an array")
        return [(tree, []) for tree, _ in trees]

    def _kind(self, leaf: Any) -> Any:
        if type(leaf) is float:
            return False if self._traces else float
        return is_static(leaf) or type(leaf) in (int, bool) or is_numbers(leaf, self._foreign)

    def _encode(self, output: Any, tree: TreeDef, kinds: list[Any], places: list[int]) -> Any:
        try:
            leaves = tree.flatten_like(output, "y", self._framework.unpack)
        except Exception:  # another structure: the loop's error names the step and the new structure
            return output
        encoded = []
        for leaf, kind in zip(leaves, kinds, strict=True):
            if kind is float:
                is_foreign = is_numbers(leaf, self._foreign) and np.isrealobj(leaf) and np.ndim(leaf) == 0
                places.append(self._table.place(leaf) if is_foreign or type(leaf) in _NUMBERS else -1)
                leaf = float(leaf) if is_foreign else leaf
            encoded.append(self._table.place(leaf) if kind is True else leaf)
        return tree.unflatten(encoded)

    def rows(self, outputs: Sequence[Any]) -> list[OutputRows]:
        """The rows of each output, from what the framework has stacked."""
        assert self._trees is not None
        *stacked, places = outputs
        rest = iter(places)
        return [self._rows(output, *tree, rest) for output, tree in zip(stacked, self._trees, strict=True)]

    def _rows(self, output: Any, tree: TreeDef, kinds: list[Any], places: Iterator[Any]) -> OutputRows:
        leaves = flatten(output, self._framework.unpack)[0]
        if not any(kinds):
            rows = cache(lambda: [self._framework.unstack(leaf) for leaf in leaves])
            return OutputRows(lambda k: tree.unflatten([row[k] for row in rows()]), lambda: output)
        columns: list[Any] = []
        stacked = output
        for leaf, kind in zip(leaves, kinds, strict=True):
            if not kind:
                columns.append(self._framework.unstack(leaf))
                continue
            where = [int(place) for place in (next(places) if kind is float else leaf)]
            array = self._framework.unstack(leaf) if -1 in where else ()
            columns.append([array[k] if place < 0 else self._table.value(place) for k, place in enumerate(where)])
            if tree is LEAF and -1 not in where:
                stacked = columns[0]
        return OutputRows(lambda k: tree.unflatten([column[k] for column in columns]), lambda: stacked)
