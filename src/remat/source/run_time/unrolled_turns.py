"""Turns on JAX one by one, in segments of which only the first state is kept: Python itself runs every turn.

The rule: outside jit and vmap, arrays have values, and Python runs a segment as plain JAX does, including branches on
data; the backward recomputes it from the same states of generators, containers and attributes, and compares the
results. Where turns use what cannot be set back, such as an iterator, the backward is an error: equal results would not
mean equal gradients. What functions print, they print once. What a segment leaves in caches of functions
(functools.lru_cache) is removed if it may have arrays of its trace (`traced_results.py`). Inside jit a segment is
traced once. Either way a turn passes on only arrays and plain values: an array inside anything else (a function, an
object) would lose its gradient, and a function would see the variables of its own turn, where Python lets it see the
last ones.

What it can miss: state in other libraries than Python's own, if the results are equal by chance; traced arrays that no
search finds are an error of JAX. The cost: a search of what the step reaches; the memory of a segment's turns; unrolled
loops take as long to compile as plain ones.
"""

import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count as numbers
from types import FunctionType
from typing import Any, NamedTuple

from remat.closures.capture import ConvertedClosure
from remat.closures.captures import Captures
from remat.closures.closure_search import ClosureSearch
from remat.errors import DeterminismError, StepError
from remat.execute.python_state import Contents
from remat.execute.recomputation import recomputing
from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import SegmentReplay, StateReplay
from remat.execute.stop import STOP
from remat.frameworks import Framework
from remat.pytree import flatten
from remat.source.loop_info import LoopInfo
from remat.source.run_time.items import Items
from remat.source.run_time.ran import ENDS, OutputRows, Ran, Step
from remat.source.run_time.segment_sizes import SegmentSizes
from remat.source.run_time.speech import Speech
from remat.source.run_time.traced_results import forgetting, is_plain, states_of

__all__ = ["UnrolledTurns", "named_errors", "search_of"]


class _Part(NamedTuple):
    """The result of a segment without its arrays: the structure that they are in, and plain values."""

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
    sizes: SegmentSizes
    search: ClosureSearch  # what the step reaches
    foreign: frozenset[str] = frozenset()  # what a second run of a turn would find changed

    def run(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        """Run the turns from `start` on."""
        count, done, ended = None if stop is None else stop - start, 0, False
        outputs: list[Any] = []
        closure = ConvertedClosure(self.step, self.search, self.search.captures)
        captured = closure.take_values()
        for number in numbers():
            if ended or (count is not None and done >= count):
                break
            size = self.sizes.size(count, number)
            most = size if count is None else min(size, count - done)
            values, given, part = self._segment(closure, captured, values, start + done, most)
            outputs += given
            done, ended = done + part.turns, part.ended
        if done == 0:
            return Ran(None, 0, (), ENDS)
        columns = [list(column) for column in zip(*outputs, strict=True)] if outputs[0] is not None else []
        rows = [OutputRows(column.__getitem__, partial(self.framework.stack, column)) for column in columns]
        return Ran(values, done, rows, ENDS if ended else "")

    def is_array(self, leaf: Any) -> bool:
        """Whether a leaf is an array of the framework."""
        return isinstance(leaf, self.framework.TRAITS.array_types)

    def within(self, budget: int, values: Sequence[Any], start: int) -> "UnrolledTurns":
        """The same turns in segments that stay within this many bytes; the first turn is run once to measure it."""
        if self.foreign:
            raise StepError(
                f"a budget in bytes needs an iteration to be run once more, to measure it, but {self._changed()}"
            )
        closure = ConvertedClosure(self.step, self.search, self.search.captures)
        run, inputs, _ = self._function(closure, closure.take_values(), values, start, 1, [])
        with SegmentReplay(self._states()).rewound(), recomputing(True):
            tape = self.framework.tape_bytes(run, inputs)
        state = sum(leaf.size * leaf.dtype.itemsize for leaf in flatten(tuple(values))[0] if self.is_array(leaf))
        return replace(self, sizes=SegmentSizes(None, budget, state, tape))

    def _function(
        self,
        closure: ConvertedClosure,
        captured: Sequence[Any],
        values: Sequence[Any],
        start: int,
        most: int,
        parts: list[_Part],
    ) -> tuple[Callable[..., list[Any]], list[Any], bool]:
        """Turns as a function of arrays, which appends its result to `parts`; its arrays; whether it runs eagerly."""
        # Items of unknown number are taken in their turns, and so are numbers, of which a turn may end the loop early.
        ahead = self.items is not None and self.items.count is not None and not self.items.are_numbers
        xs = [self.items.at(k) for k in range(start, start + most)] if ahead and self.items is not None else None
        leaves, tree = flatten((tuple(values), xs))
        places = [k for k, leaf in enumerate(leaves) if self.is_array(leaf)]
        arrays = [leaves[k] for k in places]
        eager = self.framework.is_concrete([*arrays, *captured])

        def run(*arrays: Any) -> list[Any]:
            mine = list(leaves)
            for k, array in zip(places, arrays, strict=False):
                mine[k] = array
            carry, xs = tree.unflatten(mine)
            # A trace may close over anything, so only eager runs need rebinding.
            rebound = closure.rebind(arrays[len(places) :]) if eager else nullcontext(self.step)
            with rebound as step, forgetting(self.search):
                part, found = self._turns(step, carry, xs, start, most)
            parts.append(part)
            return found

        run.__wrapped__ = _named_place(self.info)  # type: ignore[attr-defined]
        return run, [*arrays, *captured] if eager else arrays, eager

    def _segment(
        self, closure: ConvertedClosure, captured: Sequence[Any], values: Sequence[Any], start: int, most: int
    ) -> tuple[Sequence[Any], list[Any], _Part]:
        parts: list[_Part] = []
        run, inputs, eager = self._function(closure, captured, values, start, most, parts)
        replay = SegmentReplay(self._states())
        results = {id(each) for _, each in self.search.results}
        contents = Contents.of(each for each in self.search.containers if id(each) not in results)

        def again(*arrays: Any) -> list[Any]:
            if self.foreign:
                raise DeterminismError(
                    f"{self.info.where}: the backward would run iterations again, but {self._changed()}"
                )
            with replay.rewound(), recomputing(True), named_errors(self.info):
                return run(*arrays)

        given = self.framework.segment(run, inputs, again if eager else None)
        self._check_containers(contents)
        replay.forget_unused()
        part, rest = parts[0], iter(given)
        pairs = zip(part.leaves, part.is_array, strict=True)
        carry, outputs = part.tree.unflatten([next(rest) if is_array else leaf for leaf, is_array in pairs])
        return carry, outputs, part

    def _turns(self, step: Step, carry: Any, xs: Any, start: int, most: int) -> tuple[_Part, list[Any]]:
        """Run turns in Python; return the result, and its arrays separately."""
        outputs, ended = [], False
        replay = StateReplay(self._states()) if self.info.ends or self.info.kind == "while" else None
        for k in range(start, start + most):
            mark = None if replay is None else replay.snapshot()
            if xs is None and self.items is not None and not self.items.has(k):
                ended = True
                break
            x = None if self.items is None else self.items.at(k) if xs is None else xs[k - start]
            after, y = self.speech.turn(step, k, carry, x)
            if after is STOP:
                ended = True
                if replay is not None:  # the turn is rerun in place, and must draw the same numbers
                    replay.rewind(mark)
                break
            carry = after
            outputs.append(y)
        found, tree = flatten((tuple(carry), outputs))
        is_array = [self.is_array(leaf) for leaf in found]
        for leaf, is_it in zip(found, is_array, strict=True):
            if not (is_it or is_plain(leaf)):
                self._check_object(leaf)
        plain = [None if is_it else leaf for leaf, is_it in zip(found, is_array, strict=True)]
        arrays = [leaf for leaf, is_it in zip(found, is_array, strict=True) if is_it]
        return _Part(len(outputs), ended, tree, plain, is_array), arrays

    def _states(self) -> list[ReplayableState]:
        return states_of(self.search)

    def _changed(self) -> str:
        return (
            f"they may change objects that cannot be set back ({', '.join(sorted(self.foreign))}). Take what they need "
            "from these before the loop, as a list or an array"
        )

    def _check_object(self, leaf: Any) -> None:
        """Refuse an object that holds arrays of its turn, or a function that reads variables of its turn."""
        search = ClosureSearch(Captures(self.is_array), self.framework.TRAITS.array_types, [leaf])
        if ConvertedClosure(leaf, search, search.captures).take_values():
            raise StepError(
                f"an iteration passes on a {type(leaf).__name__} with an array in it, which would have no gradient: "
                "pass on the array itself"
            )
        if any(set(code.co_freevars) - {"__class__"} for code in search.code):
            raise StepError(
                "an iteration passes on a function that reads its variables, where Python would let it see the "
                "last ones: call it there and pass on what it returns, or bind them as defaults (lambda v, i=i: …)"
            )

    def _check_containers(self, contents: Contents) -> None:
        if any(map(self.is_array, contents.added_leaves())):
            raise StepError(
                "a function that the loop calls puts an array into a container outside the loop, where it would "
                "have no gradient: return it, and append it to a list in the loop"
            )


def _named_place(info: LoopInfo) -> FunctionType:
    """A function with the file, line and name of the loop, for messages of JAX."""
    code = (lambda *arrays: None).__code__
    code = code.replace(co_filename=info.file, co_firstlineno=info.line, co_name=info.function)
    return FunctionType(code, {}, info.function)


def _user_line(error: Exception, info: LoopInfo) -> tuple[str, int, str]:
    """File, line and code of the user's program where an error arose; those of the loop if none are found."""
    place, trace = (info.file, info.line, info.code), error.__traceback__
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in ("remat", "jax", "jaxlib", "contextlib"):
            text = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            place = (code.co_filename, trace.tb_lineno, text) if text else place
        elif code.co_filename == info.file:
            place = info.file, trace.tb_lineno, linecache.getline(info.file, trace.tb_lineno).strip()
        trace = trace.tb_next
    return place


@contextmanager
def named_errors(info: LoopInfo) -> Iterator[None]:
    """A context whose tracing errors name the loop and say what to do."""
    try:
        yield
    except Exception as error:
        names = " ".join(each.__name__ for each in type(error).__mro__)
        if "UnexpectedTracer" in names:
            raise StepError(
                "a function that the loop calls keeps an array from one iteration to another, in a cache or attribute, "
                "where it would have no gradient: return it instead"
            ) from error
        if isinstance(error, TypeError) and "unhashable" in str(error) and "Tracer" in str(error):
            file, line, code = _user_line(error, info)
            raise StepError(
                f"line {line} of {file} (`{code}`) has a traced array as a key: of a dict, a set, or the cache of a "
                "function (functools.lru_cache). Use Python's numbers as keys, or call the function without its cache, "
                "as f.__wrapped__"
            ) from error
        if "Tracer" in names or "Concret" in names:
            file, line, code = _user_line(error, info)
            error.add_note(
                f"{file}, line {line}, in the loop of line {info.line} (`{info.code}`): what is done here needs the "
                f"values of traced arrays, which plain JAX refuses, too:\n    {code}\nUse functions of jax.numpy, "
                "jnp.where or jax.lax.cond in it. Outside of jit "
                "and vmap it may branch on data; inside, a `while` loop may, whose test alone asks for it."
            )
        raise


def search_of(framework: Framework, step: Callable[..., Any]) -> ClosureSearch:
    """The search for what a step reaches: arrays, containers, generators."""
    types = framework.TRAITS.array_types
    return ClosureSearch(Captures(lambda leaf: isinstance(leaf, types)), types, [step])
