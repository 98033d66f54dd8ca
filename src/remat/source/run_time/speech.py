"""Printing and logging once per turn: not when a step is recomputed, measured, or rerun in place to end the loop.

The rule: a call such as `print(x)` in a step is deferred, with its arguments evaluated, until the next turn begins or
the loop is done; it is made unless the turn has printed before. In a step inside another step, it is deferred to that
one. Functions that a step calls are not rewritten: where turns run again in Python (`unrolled_turns.py`), what they
write to the standard output and error then is dropped (`silence`). What it can miss: files that they write to
themselves, and handlers of logging with a stream of their own. The cost: none for other loops.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from threading import get_ident
from typing import Any

from remat.execute.recomputation import is_recomputing
from remat.execute.stop import STOP
from remat.source.run_time.ran import Step

__all__ = ["Speech", "say", "silence"]

_Calls = list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
_put_down: ContextVar[_Calls | None] = ContextVar("put_down", default=None)


def say(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Make a call that prints, or defer it until the turn is done."""
    calls = _put_down.get()
    if calls is None:
        if not is_recomputing():
            call(*args, **kwargs)
    else:
        calls.append((call, args, kwargs))


class _Muted:
    """A stream that drops what this thread writes; other threads write to the stream itself."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, get_ident()

    def write(self, text: str) -> int:
        """Drop a text, or write that of another thread."""
        return len(text) if get_ident() == self._thread else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def silence() -> Iterator[None]:
    """A context in which this thread prints nothing, since it has printed it before."""
    with redirect_stdout(_Muted(sys.stdout)), redirect_stderr(_Muted(sys.stderr)):
        yield


class Speech:
    """Which turns of one loop have printed, and the deferred calls of the last one, until it is known to count."""

    __slots__ = ("_next", "_pending")

    def __init__(self) -> None:
        self._next = 0  # the first turn that has not printed
        self._pending: _Calls = []

    def turn(self, step: Step, number: int, carry: Any, x: Any) -> Any:
        """Run a turn, after making the calls of the one before, whose carry has now been accepted."""
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
        """Make the deferred calls."""
        calls, self._pending = self._pending, []
        for call, args, kwargs in calls:
            say(call, *args, **kwargs)

    def forget(self, number: int) -> None:
        """Drop the deferred calls of a turn that does not count and will be rerun."""
        if self._next > number:
            self._next, self._pending = number, []
