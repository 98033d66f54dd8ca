"""Turns on JAX, whose steps are traced: one compiled loop where that means the same as plain Python, else segments.

The rule. A step that is traced once sees its turn's number as an array and runs its Python once. So a loop is compiled
(`scan`) only if it carries arrays and floats, has no end of its own, does not raise anything to the power of its
variable, gives out arrays, and changes no object that it reaches. All others are unrolled as plain JAX would do, in
segments whose residuals are recomputed: there every turn is Python's own, and as many states are kept as there are
slots. A `while` that ends on data is `while_loop`; other ends on data are JAX's own error, in the user's line.

What it can miss: objects that no search finds (files, other modules' globals). The cost: for a loop that turns out not
to be one for `scan`, a trace of its step; unrolled loops take as long to compile as plain ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isqrt
from types import FunctionType
from typing import Any

import numpy as np

from remat.closures.captures import Captures
from remat.closures.closure_search import ClosureSearch
from remat.errors import RematError, StepError
from remat.execute.python_state import Contents
from remat.execute.stop import STOP
from remat.frameworks import Framework
from remat.loops.request import LoopRequest
from remat.pytree import flatten
from remat.source.items import Items
from remat.source.loop_info import LoopInfo
from remat.source.ran import Ran, Step

__all__ = ["TracedTurns"]

SEGMENT = 16  # turns of a segment where the length of the loop is not known


@dataclass
class _Part:
    """What tracing a segment has shown besides its arrays."""

    turns: int = 0
    ended: bool = False
    statics: list[Any] = field(default_factory=list)
    tree: Any = None


@dataclass(frozen=True)
class TracedTurns:
    """The turns of one loop on JAX; `scan` runs it as one compiled loop."""

    info: LoopInfo
    framework: Framework
    step: Step
    test: Callable[[Any], Any] | None
    items: Items | None
    request: Callable[[int | None], LoopRequest]
    scan: Callable[[Sequence[Any], int, int, str], Ran]

    def run(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        """Run the turns from `start` on."""
        contents = Contents.of(ClosureSearch(Captures(lambda leaf: False), (), [self.step]).containers)
        if stop is not None and self._may_be_compiled(values):
            try:
                ran = self.scan(values, start, stop, "")
            except StepError:
                ran = None
            except RematError:
                raise
            except Exception:  # what a tracer cannot be: an index of a list, a truth value, a text
                ran = None
            if ran is not None and not _has_changed(contents):
                return ran
            contents.restore()  # as if it had not been traced
        try:
            return self._unrolled(values, start, stop)
        except TypeError as error:
            if not (_is_of_tracing(error) and self._may_be_while_loop(values)):
                raise
            contents.restore()
        return self._while_loop(values)

    def _is_array(self, leaf: Any) -> bool:
        return isinstance(leaf, (*self.framework.TRAITS.array_types, np.ndarray, np.generic))

    def _may_be_compiled(self, values: Sequence[Any]) -> bool:
        info, items = self.info, self.items
        if not info.traceable or info.ends or info.emits or items is None or items.stacked is None:
            return False
        leaves = flatten(tuple(values))[0]
        return all(self._is_array(leaf) or type(leaf) in (float, complex) for leaf in leaves) and None not in values

    def _may_be_while_loop(self, values: Sequence[Any]) -> bool:
        info = self.info
        if self.test is None or info.ends or info.lists or info.arrays or info.emits:
            return False
        whole = {name for name, value in zip(info.carry, values, strict=True) if type(value) in (int, bool)}
        others = [v for name, v in zip(info.carry, values, strict=True) if name not in whole]
        leaves = flatten(others)[0]
        return not whole & info.scaled and all(self._is_array(x) or type(x) in (float, complex) for x in leaves)

    def _while_loop(self, values: Sequence[Any]) -> Ran:
        step, test = self.step, self.test
        assert test is not None
        request = self.request(None)
        after = self.framework.while_loop(test, lambda carry: step(carry, True)[0], tuple(values), None, request)
        return Ran(after, 1, (), (), "it ends the loop")

    def _unrolled(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        """The turns one by one, in segments of which only the first state is kept."""
        count = None if stop is None else stop - start
        size, done, ended = self._segment_size(count), 0, False
        outputs: list[Any] = []
        while not ended and (count is None or done < count):
            most = size if count is None else min(size, count - done)
            values, given, part = self._segment(values, start + done, most)
            outputs += given
            done, ended = done + part.turns, part.ended
        if done == 0:
            return Ran(None, 0, (), (), "it ends the loop")
        lists = len(self.info.lists)
        rows = [partial(_given, outputs, j) for j in range(lists)]
        columns = [[given[j] for given in outputs] for j in range(lists, lists + len(self.info.arrays))]
        filled = [self.framework.stack(column) for column in columns]
        return Ran(values, done, rows, filled, "it ends the loop" if ended else "")

    def _segment_size(self, count: int | None) -> int:
        memory = self.request(count).memory
        slots = None if memory is None else memory.device.slots
        if count is None:
            return SEGMENT
        return -(-count // (slots or max(1, isqrt(count))))

    def _segment(self, values: Sequence[Any], start: int, most: int) -> tuple[Sequence[Any], list[Any], _Part]:
        leaves, tree = flatten(tuple(values))
        dynamic = [k for k, leaf in enumerate(leaves) if self._is_array(leaf)]
        part = _Part()

        def run(*arrays: Any) -> list[Any]:
            part.turns = 0
            mine = list(leaves)
            for k, array in zip(dynamic, arrays, strict=True):
                mine[k] = array
            carry, outputs = tree.unflatten(mine), []
            for k in range(start, start + most):
                if self.items is not None and not self.items.has(k):
                    part.ended = True
                    break
                after, y = self.step(carry, None if self.items is None else self.items.at(k))
                if after is STOP:
                    part.ended = True
                    break
                carry, part.turns = after, part.turns + 1
                outputs.append(y)
            found, part.tree = flatten((tuple(carry), outputs))
            if any(isinstance(leaf, FunctionType) for leaf in found):
                # It reads variables of the turn, which Python would let it see as they are after the loop.
                raise StepError("a turn hands on a function: call it in the turn, and hand on what it returns")
            part.statics = [None if self._is_array(leaf) else (leaf,) for leaf in found]
            return [leaf for leaf in found if self._is_array(leaf)]

        arrays = iter(self.framework.segment(run, [leaves[k] for k in dynamic]))
        carry, outputs = part.tree.unflatten([next(arrays) if each is None else each[0] for each in part.statics])
        return carry, outputs, part


def _given(outputs: list[Any], j: int, k: int) -> Any:
    return outputs[k][j]


def _has_changed(contents: Contents) -> bool:
    changed = contents.changed()
    return bool(changed.pairs or changed.empty)


def _is_of_tracing(error: TypeError) -> bool:
    return any("Tracer" in each.__name__ or "Concretization" in each.__name__ for each in type(error).__mro__)
