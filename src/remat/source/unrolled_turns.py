"""Turns on JAX one by one, in segments of which only the first state is kept: every turn is Python's own.

The rule. Outside of jit and vmap arrays have values, and Python runs a segment as plain JAX does, branches on data
included; in the backward it runs it again, from the same state of generators and containers, and compares the results.
Inside of jit a segment is traced once. Either way a turn hands on arrays and plain values alone: what else could hold
an array (functions, objects) would lose its gradient, and a function would see the variables of its own turn, where
Python lets it see the last ones.

What it can miss: nothing that would be wrong; traced arrays that no search finds are an error of JAX. The cost: a
search of what the step reaches; the memory of a segment's turns; unrolled loops take as long to compile as plain ones.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from remat.closures.capture import ConvertedClosure
from remat.closures.captures import Captures
from remat.closures.closure_search import ClosureSearch
from remat.errors import StepError
from remat.execute.python_state import Contents, PythonState
from remat.execute.recomputation import recomputing
from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import SegmentReplay, StateReplay
from remat.execute.stop import STOP
from remat.frameworks import Framework
from remat.pytree import flatten
from remat.source.items import Items
from remat.source.loop_info import LoopInfo
from remat.source.ran import Ran, Step
from remat.source.speech import Speech
from remat.source.statics import is_static

__all__ = ["UnrolledTurns", "named_errors", "reached"]

SEGMENT = 16  # turns of the first segments where the length of the loop is not known


class _Part(NamedTuple):
    """What a segment has given: its arrays apart from the structure that they are in, and from plain values."""

    turns: int
    ended: bool
    tree: Any
    leaves: list[Any]  # None for arrays
    is_array: list[bool]


@dataclass(frozen=True)
class UnrolledTurns:
    """The turns of one loop on JAX, run or traced one by one."""

    info: LoopInfo
    framework: Framework
    step: Step
    items: Items | None
    speech: Speech
    slots: int | None
    search: ClosureSearch  # of what the step reaches

    def run(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        """Run the turns from `start` on."""
        count, done, ended = None if stop is None else stop - start, 0, False
        outputs: list[Any] = []
        closure = ConvertedClosure(self.step, self.search, self.search.captures)
        captured = closure.take_values()
        for number in numbers():
            if ended or (count is not None and done >= count):
                break
            size = self.segment_size(count, number)
            most = size if count is None else min(size, count - done)
            values, given, part = self._segment(closure, captured, values, start + done, most)
            outputs += given
            done, ended = done + part.turns, part.ended
        if done == 0:
            return Ran(None, 0, (), (), "it ends the loop")
        lists = len(self.info.lists)
        rows = [partial(_given, outputs, j) for j in range(lists)]
        columns = [[given[j] for given in outputs] for j in range(lists, lists + len(self.info.arrays))]
        filled = [self.framework.stack(column) for column in columns]
        return Ran(values, done, rows, filled, "it ends the loop" if ended else "")

    def segment_size(self, count: int | None, number: int = 0) -> int:
        """The turns of a segment: as many segments as slots; where the length is not known, √n grows with it."""
        if count is None:
            return max(SEGMENT, number)
        return -(-count // (self.slots or max(1, isqrt(count))))

    def is_array(self, leaf: Any) -> bool:
        """Whether a leaf is an array of the framework."""
        return isinstance(leaf, self.framework.TRAITS.array_types)

    def _segment(
        self, closure: ConvertedClosure, captured: Sequence[Any], values: Sequence[Any], start: int, most: int
    ) -> tuple[Sequence[Any], list[Any], _Part]:
        # Items whose number is not known are taken when their turn comes.
        known = self.items is not None and self.items.count is not None
        xs = [self.items.at(k) for k in range(start, start + most)] if known and self.items is not None else None
        leaves, tree = flatten((tuple(values), xs))
        places = [k for k, leaf in enumerate(leaves) if self.is_array(leaf)]
        arrays = [leaves[k] for k in places]
        eager = self.framework.is_concrete([*arrays, *captured])
        replay = SegmentReplay(self._states())
        contents = Contents.of(self.search.containers)
        parts: list[_Part] = []

        def run(*arrays: Any) -> list[Any]:
            mine = list(leaves)
            for k, array in zip(places, arrays, strict=False):
                mine[k] = array
            carry, xs = tree.unflatten(mine)
            # A trace may close over what it likes.
            rebound = closure.rebind(arrays[len(places) :]) if eager else nullcontext(self.step)
            with rebound as step:
                part, found = self._turns(step, carry, xs, start, most)
            parts.append(part)
            return found

        def again(*arrays: Any) -> list[Any]:
            with replay.rewound(), recomputing(True), named_errors(self.info):
                return run(*arrays)

        given = self.framework.segment(run, [*arrays, *captured] if eager else arrays, again if eager else None)
        self._check_containers(contents)
        replay.forget_unused()
        part, rest = parts[0], iter(given)
        pairs = zip(part.leaves, part.is_array, strict=True)
        carry, outputs = part.tree.unflatten([next(rest) if is_array else leaf for leaf, is_array in pairs])
        return carry, outputs, part

    def _turns(self, step: Step, carry: Any, xs: Any, start: int, most: int) -> tuple[_Part, list[Any]]:
        """Turns in Python, and the arrays that they give."""
        outputs, ended = [], False
        replay = StateReplay(self._states()) if self.info.ends or self.info.kind == "while" else None
        for k in range(start, start + most):
            mark = None if replay is None else replay.snapshot()
            if xs is None and self.items is not None and not self.items.has(k):
                ended = True
                break
            x = None if self.items is None else self.items.at(k) if xs is None else xs[k - start]
            after, y = self.speech.turn(step, k, carry, x) if self.info.emits else step(carry, x)
            if after is STOP:
                ended = True
                if replay is not None:  # it runs again in place, and draws what it has drawn here
                    replay.rewind(mark)
                break
            carry = after
            outputs.append(y)
        found, tree = flatten((tuple(carry), outputs))
        is_array = [self.is_array(leaf) for leaf in found]
        for leaf, is_it in zip(found, is_array, strict=True):
            if not (is_it or _is_plain(leaf)):
                self._check_object(leaf)
        plain = [None if is_it else leaf for leaf, is_it in zip(found, is_array, strict=True)]
        arrays = [leaf for leaf, is_it in zip(found, is_array, strict=True) if is_it]
        return _Part(len(outputs), ended, tree, plain, is_array), arrays

    def _states(self) -> list[ReplayableState]:
        return [*self.search.generators, PythonState(self.search.containers)]

    def _check_object(self, leaf: Any) -> None:
        """Refuse an object that holds arrays of its turn, or a function that reads variables of its turn."""
        search = ClosureSearch(Captures(self.is_array), self.framework.TRAITS.array_types, [leaf])
        if ConvertedClosure(leaf, search, search.captures).take_values():
            raise StepError(
                f"a turn hands on a {type(leaf).__name__} with an array in it, which would have no gradient: hand on "
                "the array itself"
            )
        if any(set(code.co_freevars) - {"__class__"} for code in search.code):
            raise StepError(
                "a turn hands on a function that reads variables of its turn, where Python would let it see the last "
                "ones: call it in the turn, and hand on what it returns, or bind them as defaults (lambda v, i=i: …)"
            )

    def _check_containers(self, contents: Contents) -> None:
        if any(map(self.is_array, contents.added_leaves())):
            raise StepError(
                "a function that the loop calls puts an array into a container outside of the loop, where it would "
                "have no gradient: return it, and append it to a list in the loop"
            )


def _is_plain(leaf: Any) -> bool:
    """Whether a leaf is a value that holds no array of JAX."""
    if isinstance(leaf, np.ndarray):
        return bool(leaf.dtype.kind != "O")
    return is_static(leaf) or isinstance(leaf, int | float | complex | np.generic | np.dtype | range)


def _given(outputs: list[Any], j: int, k: int) -> Any:
    return outputs[k][j]


@contextmanager
def named_errors(info: LoopInfo) -> Iterator[None]:
    """A block whose errors of tracing name the loop, and say what to do."""
    try:
        yield
    except Exception as error:
        names = " ".join(each.__name__ for each in type(error).__mro__)
        if "UnexpectedTracer" in names:
            raise StepError(
                "a function that the loop calls keeps an array from one turn to another, in a cache or an attribute, "
                "where it would have no gradient: return it instead"
            ) from error
        if "Tracer" in names or "Concret" in names:
            error.add_note(
                f"{info.where}: this loop does with traced arrays what needs their values, which plain JAX refuses, "
                f"too:\n    {info.code}\nUse functions of jax.numpy, jnp.where or jax.lax.cond in it. Outside of jit "
                "and vmap it may branch on data; inside, a `while` loop may, whose test alone asks for it."
            )
        raise


def reached(framework: Framework, step: Callable[..., Any]) -> ClosureSearch:
    """The search for what a step reaches: arrays, containers, generators."""
    types = framework.TRAITS.array_types
    return ClosureSearch(Captures(lambda leaf: isinstance(leaf, types)), types, [step])
