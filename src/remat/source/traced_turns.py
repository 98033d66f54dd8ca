"""Turns on JAX, whose loops are traced: one compiled loop where that means the same as plain Python, else one by one.

The rule. A step that is traced once sees its turn's number as an array and runs its Python once. So a loop is compiled
(`scan`) only if it carries arrays and floats, has no end of its own, does not raise anything to the power of its
variable nor asks for its type or text, gives out arrays, draws no random numbers, changes no object that it reaches,
and reaches no code that handles exceptions (it could swallow those of a tracer). A `while` that ends on data alone is
`while_loop`, under the same conditions. All others run one by one (`unrolled_turns.py`). Inside of jit Python cannot
branch on data: that is JAX's own error, with the line of the loop.

What it can miss: state that no search finds (files, the time, other modules' globals). The cost: for a loop that turns
out not to be one for `scan`, a trace of its step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from remat.errors import RematError, StepError
from remat.execute.python_state import PythonState
from remat.execute.state_replay import StateReplay
from remat.frameworks import Framework
from remat.pytree import flatten
from remat.source.items import Items
from remat.source.loop_info import LoopInfo
from remat.source.ran import Ran, Step
from remat.source.settings import Requests
from remat.source.speech import Speech
from remat.source.traceability import asks
from remat.source.unrolled_turns import UnrolledTurns, named_errors, reached

__all__ = ["TracedTurns"]


@dataclass(frozen=True)
class TracedTurns:
    """The turns of one loop on JAX; `scan` runs it as one compiled loop."""

    info: LoopInfo
    framework: Framework
    step: Step
    test: Callable[[Any], Any] | None
    items: Items | None
    request: Requests
    scan: Callable[[Sequence[Any], int, int, str], Ran]
    speech: Speech

    def run(self, values: Sequence[Any], start: int, stop: int | None) -> Ran:
        """Run the turns from `start` on."""
        search = reached(self.framework, self.step)
        replay = StateReplay([*search.generators, PythonState(search.containers)])
        ran = None
        helpers = [code for code in search.code if code.co_name not in (".step", ".test")]
        if not self._handles(search.code):
            if stop is not None and self._may_be_compiled(values, helpers):
                ran = self._traced(replay, lambda: self.scan(values, start, stop, ""))
            elif self._is_while_loop(values, replay):
                ran = self._traced(replay, lambda: self._while_loop(values))
        if ran is not None:
            return ran
        count = None if stop is None else stop - start
        memory = self.request(count).memory
        slots = None if memory is None else memory.device.slots
        turns = UnrolledTurns(self.info, self.framework, self.step, self.items, self.speech, slots, search)
        with named_errors(self.info):
            ran = turns.run(values, start, stop)
        self._log(turns, count, ran)
        return ran

    @staticmethod
    def _handles(codes: Sequence[CodeType]) -> bool:
        """Whether code handles exceptions: it could swallow those of a tracer, and go another way than on values."""
        return any(code.co_exceptiontable for code in codes)

    def _traced(self, replay: StateReplay, run: Callable[[], Ran]) -> Ran | None:
        """What a loop gives that is traced once; None if that is not what Python would do, as if it had not been."""
        try:
            ran = run()
        except StepError:
            ran = None
        except RematError:
            raise
        except Exception:  # what a tracer cannot be: an index of a list, a truth value, a text
            ran = None
        replay.snapshot()  # notes what was used
        if ran is not None and not replay.used:
            return ran
        replay.rewind(replay.initial)
        return None

    def _may_be_compiled(self, values: Sequence[Any], helpers: Sequence[CodeType]) -> bool:
        info, items = self.info, self.items
        if not info.traceable or info.ends or info.emits or items is None or items.stacked is None:
            return False
        leaves = self._leaves(values)
        # Python's numbers that functions get are traced arrays in a compiled loop.
        if (info.hands_on or any(type(leaf) in (float, complex) for leaf in leaves)) and any(map(asks, helpers)):
            return False
        return not any(value is None for value in values) and all(map(_is_real, leaves))

    def _is_while_loop(self, values: Sequence[Any], replay: StateReplay) -> bool:
        """Whether a `while` loop ends on data, and on nothing else."""
        info = self.info
        if self.test is None or info.ends or info.lists or info.arrays or info.emits:
            return False
        whole = {name for name, value in zip(info.carry, values, strict=True) if type(value) in (int, bool)}
        others = [v for name, v in zip(info.carry, values, strict=True) if name not in whole]
        if whole & info.scaled or not all(map(_is_real, self._leaves(others))):
            return False
        try:
            return isinstance(self.test(tuple(values)), self.framework.TRAITS.array_types)
        except Exception:  # in its place it is raised again
            return False
        finally:
            replay.rewind(replay.initial)  # it may draw

    def _leaves(self, values: Sequence[Any]) -> list[Any]:
        return [None if isinstance(x, self.framework.TRAITS.array_types) else x for x in flatten(tuple(values))[0]]

    def _while_loop(self, values: Sequence[Any]) -> Ran:
        step, test = self.step, self.test
        assert test is not None
        request = self.request(None)
        after = self.framework.while_loop(test, lambda carry: step(carry, True)[0], tuple(values), None, request)
        return Ran(after, 1, (), (), "it ends the loop")

    def _log(self, turns: UnrolledTurns, count: int | None, ran: Ran) -> None:
        log = self.request(count).log
        assert log is not None
        size = turns.segment_size(count)
        log((ran.turns, f"one by one, in segments of {size} turns, each of which is run twice"))


def _is_real(leaf: Any) -> bool:
    """Whether a leaf, None for an array of JAX, may be traced as a real or complex array."""
    return leaf is None or isinstance(leaf, np.ndarray | np.generic) or type(leaf) in (float, complex)
