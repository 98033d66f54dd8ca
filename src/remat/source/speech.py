"""What a step prints or logs, said once a turn: not when it is recomputed, measured, or ends the loop and runs again.

The rule: a call such as `print(x)` in a step is put down, its arguments evaluated, and made when the next turn begins
or the loop is done, if the turn has not spoken before. In a step inside of another one, it is put down there. The cost:
none for other loops.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from remat.execute.recomputation import is_recomputing
from remat.execute.stop import STOP
from remat.source.ran import Step

__all__ = ["Speech", "say"]

_Calls = list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
_put_down: ContextVar[_Calls | None] = ContextVar("put_down", default=None)


def say(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Make a call that prints, now or when the turn is done."""
    calls = _put_down.get()
    if calls is None:
        if not is_recomputing():
            call(*args, **kwargs)
    else:
        calls.append((call, args, kwargs))


class Speech:
    """The turns of one loop that have spoken, and the last one, which speaks when it is known to count."""

    __slots__ = ("_next", "_pending")

    def __init__(self) -> None:
        self._next = 0  # the first turn that has not spoken
        self._pending: _Calls = []

    def turn(self, step: Step, number: int, carry: Any, x: Any) -> Any:
        """Run a turn; the one before it speaks, as its carry was taken."""
        first_run = not is_recomputing()
        if first_run:
            self.speak()
        calls: _Calls = []
        token = _put_down.set(calls)
        try:
            out = step(carry, x)
        finally:
            _put_down.reset(token)
        if first_run and out[0] is not STOP and number >= self._next:
            self._next, self._pending = number + 1, calls
        return out

    def speak(self) -> None:
        """Make the calls that wait."""
        calls, self._pending = self._pending, []
        for call, args, kwargs in calls:
            say(call, *args, **kwargs)

    def forget(self, number: int) -> None:
        """A turn does not count, and runs again: what it has put down is forgotten."""
        if self._next > number:
            self._next, self._pending = number, []
