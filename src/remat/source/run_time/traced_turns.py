"""Turns on JAX: one compiled loop where that has the meaning of plain Python, otherwise one by one.

The rule: a step that is traced once sees the number of its turn as an array, and runs its Python once. So a loop is
compiled (`scan`) only if it carries arrays and floats, does not end early, does not raise anything to the power of its
variable, outputs arrays, draws no random numbers, changes no container that it reaches, and everything that it calls is
known to be pure (`purity.py`). Where Python numbers are traced (the variable, carried floats), no code may ask for the
type of anything. A `while` loop that ends on data alone is a `while_loop`, under the same conditions. All others run
one by one (`unrolled_turns.py`). Inside jit Python cannot branch on data: that is JAX's own error, with the line of the
loop.

What it can miss: what `purity.py` can miss. The cost: that search, and one trace of the step for a loop that turns out
to be unsuitable for `scan`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat.errors import RematError, StepError
from remat.execute.state_replay import StateReplay
from remat.frameworks import Framework
from remat.pytree import flatten
from remat.source.loop_info import LoopInfo
from remat.source.run_time.items import Items
from remat.source.run_time.purity import Purity
from remat.source.run_time.ran import Ran, Step
from remat.source.run_time.segment_sizes import SegmentSizes
from remat.source.run_time.speech import Speech
from remat.source.run_time.traced_results import forgetting, states_of
from remat.source.run_time.unrolled_turns import UnrolledTurns, named_errors, search_of
from remat.source.settings import Requests
from remat.units import bytes_text

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
        search = search_of(self.framework, self.step)
        purity = Purity((self.step, self.test, *values), self.framework.TRAITS.array_types)
        search.containers += purity.stored
        ran = None
        if not purity.effects:
            replay = StateReplay(states_of(search))
            with forgetting(search):
                if stop is not None and self._may_be_compiled(values, purity):
                    ran = self._traced(replay, lambda: self._scan(values, start, stop))
                elif self._is_while_loop(values, purity, replay):
                    ran = self._traced(replay, lambda: self._while_loop(values))
        if ran is not None:
            return ran
        count = None if stop is None else stop - start
        memory = self.request(count).memory
        slots, budget = (None, None) if memory is None else (memory.device.slots, memory.device.capacity)
        turns = UnrolledTurns(
            self.info,
            self.framework,
            self.step,
            self.items,
            self.speech,
            SegmentSizes(slots),
            search,
            frozenset(purity.foreign),
        )
        with named_errors(self.info):
            turns = turns if budget is None else turns.within(budget, values, start)
            ran = turns.run(values, start, stop)
        self._log(turns, count, ran)
        return ran

    def _traced(self, replay: StateReplay, run: Callable[[], Ran]) -> Ran | None:
        """The result of a loop that is traced once; None, with its effects undone, if Python would do otherwise."""
        try:
            ran = run()
        except StepError:
            ran = None
        except RematError:
            raise
        except Exception:  # a tracer was used as an index of a list, a truth value, a text
            ran = None
        replay.snapshot()  # for its side effect: it updates `used`
        if ran is not None and not replay.used:
            return ran
        replay.rewind(replay.initial)
        return None

    def _may_be_compiled(self, values: Sequence[Any], purity: Purity) -> bool:
        info, items = self.info, self.items
        if not info.traceable or info.ends or info.emits or items is None or items.stacked is None:
            return False
        parts = items.stacked if isinstance(items.stacked, tuple) else (items.stacked,)
        numbers = info.reads_variable and any(isinstance(part, range) for part in parts)
        leaves = self._leaves(values)
        if purity.asks and (numbers or _has_numbers(leaves)):
            return False
        return not any(value is None for value in values) and all(map(_is_real, leaves))

    def _scan(self, values: Sequence[Any], start: int, stop: int) -> Ran:
        """One compiled loop; a StepError where its integers would not be Python's."""
        items = self.items
        assert items is not None
        parts = items.stacked if isinstance(items.stacked, tuple) else (items.stacked,)
        ranges = [part[start:stop] if isinstance(part, range) else None for part in parts]
        if self.info.reads_variable and any(ranges):
            x = tuple(part[start] for part in parts)
            x = x if isinstance(items.stacked, tuple) else x[0]
            if not self.framework.stays_within_bounds(self.speech.muted(self.step), tuple(values), x, ranges):
                raise StepError("an integer may grow beyond what an array holds")
        return self.scan(values, start, stop, "")

    def _is_while_loop(self, values: Sequence[Any], purity: Purity, replay: StateReplay) -> bool:
        """Whether a `while` loop ends on data alone, and can be compiled."""
        info = self.info
        if self.test is None or info.ends or info.lists or info.arrays or info.emits:
            return False
        if purity.asks and _has_numbers(self._leaves(values)):
            return False
        whole = {name for name, value in zip(info.carry, values, strict=True) if type(value) in (int, bool)}
        others = [v for name, v in zip(info.carry, values, strict=True) if name not in whole]
        if whole & info.scaled or not all(map(_is_real, self._leaves(others))):
            return False
        try:
            return isinstance(self.test(tuple(values)), self.framework.TRAITS.array_types)
        except Exception:  # it is raised again when the loop itself evaluates the test
            return False
        finally:
            replay.rewind(replay.initial)  # the test may draw random numbers

    def _leaves(self, values: Sequence[Any]) -> list[Any]:
        return [None if isinstance(x, self.framework.TRAITS.array_types) else x for x in flatten(tuple(values))[0]]

    def _while_loop(self, values: Sequence[Any]) -> Ran:
        step, test = self.speech.listening(self.step), self.test
        assert test is not None
        request = self.request(None)
        after = self.framework.while_loop(test, lambda carry: step(carry, True)[0], tuple(values), None, request)
        return Ran(after, 1, (), "", over=True)

    def _log(self, turns: UnrolledTurns, count: int | None, ran: Ran) -> None:
        log = self.request(count).log
        assert log is not None
        sizes, size = turns.sizes, turns.sizes.size(count)
        needs = "" if sizes.budget is None else f", in {bytes_text(sizes.peak(ran.turns, size))}"
        log((ran.turns, f"one by one, in segments of {size} iterations, each of which runs twice{needs}"))


def _has_numbers(leaves: Sequence[Any]) -> bool:
    """Whether leaves are Python's numbers, which a trace turns into arrays."""
    return any(isinstance(leaf, int | float | complex) for leaf in leaves)


def _is_real(leaf: Any) -> bool:
    """Whether a leaf (None for a JAX array) may be traced as a real or complex array."""
    return leaf is None or isinstance(leaf, np.ndarray | np.generic) or type(leaf) in (float, complex)
