"""Numbers of the module that a loop's body reads: its recomputed turns see those of the first run.

The rule: a global that the body itself reads and that is a number is bound again, while a turn is recomputed, to what
it was when the turns began, so `lr = 0.1` after the loop does not change its gradient. What it can miss: numbers that
functions called by the body read, and those that were changed while the turns ran, which are replayed where code that
the step reaches assigns them; the comparison of recomputed states finds the others. On JAX only compiled loops have
their first numbers. The cost, in a loop that reads such a number: 0.2 us each time a turn runs, 0.4 us if it is
recomputed.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from remat.closures.bytecode import code_names
from remat.execute.recomputation import is_recomputing
from remat.source.run_time.ran import Step

__all__ = ["GlobalNumbers"]

_NUMBERS = (int, bool, float, complex)


class GlobalNumbers:
    """The numbers that one run of turns reads; its slots hide the module from the search for captured values."""

    __slots__ = ("_namespace", "_values")

    def __init__(self, step: Any, assigned: Callable[[], Collection[Any]]) -> None:
        """`assigned` has the places of the variables that code assigns which the step reaches."""
        self._namespace = step.__globals__
        names = code_names(step.__code__).read_globals
        self._values = {name: value for name in names if type(value := self._namespace.get(name)) in _NUMBERS}
        if self._values:
            places = assigned()
            for name in names:
                if (id(self._namespace), name) in places:
                    self._values.pop(name, None)

    def bound(self, step: Step) -> Step:
        """The step, with these numbers where it is recomputed."""
        return partial(self._run, step) if self._values else step

    def settle(self) -> None:
        """Called after the first run: forget the numbers that have changed since it began."""
        for name in [name for name, value in self._values.items() if self._namespace.get(name) is not value]:
            del self._values[name]

    def _run(self, step: Step, carry: Any, x: Any) -> Any:
        if not is_recomputing():
            return step(carry, x)
        now = self._namespace
        for name, value in self._values.items():
            if now.get(name) is not value:
                return self._run_as_before(step, carry, x)
        return step(carry, x)

    def _run_as_before(self, step: Step, carry: Any, x: Any) -> Any:
        now = self._namespace
        before = {name: now[name] for name in self._values if name in now}
        now.update(self._values)
        try:
            return step(carry, x)
        finally:
            for name in self._values.keys() - before.keys():
                del now[name]
            now.update(before)
