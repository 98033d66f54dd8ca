"""Printing and logging once per turn: not when a step is recomputed, measured, or rerun in place to end the loop.

The rule: what a turn writes to `sys.stdout`, `sys.stderr` or a Logger, itself or in functions that it calls, is held
back until the next turn begins or the loop is done, and then written unless the turn has written before. In a step
inside another step, it is held back for that one. For this, the two streams and `Logger.handle` are replaced while a
turn runs; other threads write through the replacements. Calls in the loop itself that write to other streams (objects
of `io`, writers of `csv`) or warn are held back, too; objects are recognized by their type, so a `write` method of the
user's own class is an ordinary call.

What it can miss: files that called functions write to, warnings that they raise, `sys.stdout.buffer`. The cost: two
microseconds per turn.
"""

import io
import logging
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from remat.errors import StepError
from remat.execute.recomputation import is_recomputing
from remat.execute.stop import STOP
from remat.source.run_time.ran import Step
from remat.source.syntax import is_hidden

__all__ = ["Calls", "Speech", "calls_only_libraries", "held", "say", "say_unread"]

MOST_ITEMS = 100  # of a list to look at
_LIBRARIES = frozenset({"numpy", "autograd", "scipy", "torch", "math", "cmath", "remat"})
Calls = list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
NO_CALLS: Calls = []
_held_back: ContextVar[Calls | None] = ContextVar("held_back", default=None)


def say(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a call; or hold it back until the turn is done, if it writes to a stream, and return what it would."""
    calls = _held_back.get()
    file = kwargs.get("file")
    if calls is None or not (_writes(call) or (call is print and _is_stream(file))):
        return call(*args, **kwargs)
    if call is print:  # its text is made now, since its arguments may change
        text = io.StringIO()
        call(*args, **{**kwargs, "file": text, "flush": False})
        calls.append((file.write, (text.getvalue(),), {}))  # type: ignore[union-attr]
        return None
    calls.append((call, args, kwargs))
    return len(args[0]) if getattr(call, "__name__", "") == "write" else None


def say_unread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The same, in a loop that also uses the stream otherwise: a StepError if the call would be held back."""
    calls = _held_back.get()
    held = 0 if calls is None else len(calls)
    result = say(call, *args, **kwargs)
    if calls is not None and len(calls) > held and calls[held][0] is not _write_standard:
        raise StepError(
            "it writes to a stream that it also uses otherwise, and what a turn writes is written after the turn: "
            "append to a list, and write it after the loop"
        )
    return result


def _is_stream(value: Any) -> bool:
    """Whether a value is a stream of `io`, other than the standard ones, which are replaced."""
    return isinstance(value, io.IOBase)


def _writes(call: Any) -> bool:
    """Whether a call writes to a stream, or warns."""
    owner = getattr(call, "__self__", None)
    return call is warnings.warn or _is_stream(owner) or type(owner).__module__ in ("csv", "_csv")


def _write_standard(stream: Any, text: str) -> None:
    stream.write(text)


class _Standard:
    """Replaces `sys.stdout` or `sys.stderr` while turns run."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or hold it back."""
        calls = _held_back.get()
        if calls is None:
            return self._stream.write(text)  # type: ignore[no-any-return]
        calls.append((_write_standard, (self._stream, text), {}))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write texts, or hold them back."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream, unless texts are held back."""
        if _held_back.get() is None:
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    """Replaces `Logger.handle` while turns run."""
    calls = _held_back.get()
    if calls is None:
        _logged(logger, record)
    else:
        calls.append((_logged, (logger, record), {}))


_logged: Any = logging.Logger.handle
_streams = _Standard(None), _Standard(None)  # made once for the streams of the program


def held(calls: Calls, run: Callable[..., Any], *args: Any) -> Any:
    """What a call returns; what it writes is held back, in `calls`. One function, since every turn comes here."""
    global _streams, _logged
    token = _held_back.set(calls)
    out, err = sys.stdout, sys.stderr
    replaced = type(out) is not _Standard  # by a turn around this one, or one in another thread
    if replaced:
        ours = _streams
        if ours[0]._stream is not out or ours[1]._stream is not err:
            _streams = ours = _Standard(out), _Standard(err)
        sys.stdout, sys.stderr = ours
        if logging.Logger.handle is not _handle:
            _logged, logging.Logger.handle = logging.Logger.handle, _handle  # type: ignore[method-assign, assignment]
    try:
        return run(*args)
    finally:
        if replaced:
            if sys.stdout is ours[0]:  # the program may have set another one
                sys.stdout = out
            if sys.stderr is ours[1]:
                sys.stderr = err
            logging.Logger.handle = _logged  # type: ignore[method-assign]
        _held_back.reset(token)


def calls_only_libraries(step: Step) -> bool:
    """Whether a step calls nothing of the user's that could write: all that it names is modules, numbers and arrays."""
    code: CodeType = step.__code__
    if any(isinstance(each, CodeType) for each in code.co_consts):
        return False
    values = [step.__globals__[name] for name in code.co_names if name in step.__globals__]
    for name, cell in zip(code.co_freevars, step.__closure__ or (), strict=True):
        if not is_hidden(name):
            values.append(cell.cell_contents if cell != CellType() else None)
    return all(map(_is_of_library, values))


def _is_of_library(value: Any) -> bool:
    if isinstance(value, int | float | complex | str | bytes | type(None) | BuiltinFunctionType):
        return True
    if isinstance(value, tuple | list) and len(value) < MOST_ITEMS:
        return all(map(_is_of_library, value))
    home = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    if isinstance(value, FunctionType):
        home = value.__module__
    # A module of layers may have hooks of the user's.
    return str(home).partition(".")[0] in _LIBRARIES and not hasattr(value, "forward")


class Speech:
    """Which turns of one loop have written something, and what the last one wrote, until it is known to count."""

    __slots__ = ("_attempt", "_next", "_pending", "before", "is_heard")

    def __init__(self, attempt: Callable[[Step, Any, Any], Any], before: Callable[[int], Calls]) -> None:
        self._attempt, self.before = attempt, before  # runs a step; what is written before a turn
        self._next = 0  # the first turn that has not written
        self._pending: Calls = []
        self.is_heard = False  # whether a turn of unknown number has written something

    def turn(self, step: Step, number: int, carry: Any, x: Any) -> Any:
        """Run a turn, after making the calls of the one before, whose carry has now been accepted."""
        first_run = not is_recomputing()
        if first_run:
            self.speak()
        calls: Calls = []
        out = held(calls, self._attempt, step, carry, x)
        if first_run and out[0] is not STOP and number >= self._next:
            self._next, self._pending = number + 1, [*self.before(number), *calls]
        return out

    def attempting(self, step: Step) -> Step:
        """The step for turns that write nothing."""

        def attempted(carry: Any, x: Any) -> Any:
            return self._attempt(step, carry, x)

        return attempted

    def listening(self, step: Step) -> Step:
        """The step for turns without numbers: one that writes something for the first time is noted, and stopped."""

        def listened(carry: Any, x: Any) -> Any:
            calls: Calls = []
            out = held(calls, self._attempt, step, carry, x)
            if calls and not is_recomputing():
                self.is_heard = True
                return STOP, None
            return out

        return listened

    @staticmethod
    def muted(step: Step) -> Step:
        """The step for trial runs, of which nothing is written."""

        return lambda carry, x: held([], step, carry, x)

    def speak(self, more: Calls = NO_CALLS) -> None:
        """Make the calls that were held back, and these, or pass them on to the turn around this loop."""
        calls, self._pending = [*self._pending, *more], []
        outer = _held_back.get()
        if outer is not None:
            outer += calls
        elif not is_recomputing():
            for call, args, kwargs in calls:
                call(*args, **kwargs)

    def forget(self, number: int) -> None:
        """Drop the calls of a turn that does not count and will be rerun."""
        if self._next > number:
            self._next, self._pending = number, []
