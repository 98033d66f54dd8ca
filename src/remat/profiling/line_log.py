"""Which line of the user's code ran when, by a clock of the framework that counts recorded operations.

The rule: while a step is recorded, Python's trace function logs the clock for each line of the user's code, and for
each return to one. A recorded operation carries its own clock value, which gives its line. Lines of frameworks, remat
and the standard library count as the user's line that called them. The log ends after the first step that it sees.

What it can miss: everything, if a debugger or a coverage tool has already set a trace function, which is left in place.
The cost: about 1 us for each call and line of Python in one step, and nothing without a profile.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable
from types import FrameType
from typing import Any

from remat.profiling.source_location import SourceLocation, is_internal

__all__ = ["LineLog"]

MOST_LINES = 20_000


class LineLog:
    """The lines that ran in one step of a loop; `current_step` returns the number of the running step."""

    def __init__(self, clock: Callable[[], int], current_step: Callable[[], int] = lambda: 0) -> None:
        self._clock, self._current_step = clock, current_step
        self._times: list[int] = []
        self._places: list[tuple[str, int, str]] = []
        self._step: int | None = None  # the step that is logged
        self._on = False
        self.stop: int | None = None  # the clock when the next step began

    def begin(self) -> None:
        """Start logging in this thread, unless it already has a trace function."""
        if sys.gettrace() is None:
            self._on = True
            sys.settrace(self._called)

    def end(self) -> None:
        """Stop logging."""
        if self._on:
            self._on = False
            sys.settrace(None)

    @property
    def start(self) -> int | None:
        """The clock at the first line; None if there is none."""
        return self._times[0] if self._times else None

    def line(self, time: int) -> str:
        """The file and line that ran at a clock value; empty if unknown."""
        at = bisect_right(self._times, time) - 1
        return "" if at < 0 else SourceLocation(*self._places[at]).short

    def note_internal(self, frame: FrameType) -> None:
        """Called when a function of a framework starts; a framework may override it to read the frame."""

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if is_internal(frame):
            self.note_internal(frame)
            return None
        if self._step is None:
            self._step = self._current_step()
        if self._step != self._current_step() or len(self._times) > MOST_LINES:
            self.stop = self._clock()
            self.end()
            return None
        return self._ran

    def _ran(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._note(frame)
        elif event == "return":  # what runs next belongs to the caller's line
            caller = frame.f_back
            while caller is not None and is_internal(caller):
                caller = caller.f_back
            if caller is not None:
                self._note(caller)
        return self._ran

    def _note(self, frame: FrameType) -> None:
        self._times.append(self._clock())
        self._places.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
