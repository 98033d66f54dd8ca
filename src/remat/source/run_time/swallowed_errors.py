"""Errors of remat that a handler or a context of the program swallows: they are raised when its function ends.

Such a loop has not run, so what the function returns would be wrong. It concerns loops inside `try` and contexts, whose
function is rewritten to end with `settle()`. What it can miss: handlers in the body of an outer loop.
"""

import sys
from types import FrameType

from remat.errors import RematError
from remat.source.loop_info import LoopInfo
from remat.source.syntax import is_hidden

__all__ = ["note_error", "settle"]

_raised: dict[int, RematError] = {}  # by the id of the frame of the function, until it ends


def note_error(error: RematError, info: LoopInfo, frame: FrameType) -> None:
    """Note that a loop in this frame has raised an error, which a handler around it may swallow."""
    if "an exception" in info.ends and not is_hidden(frame.f_code.co_name):
        _raised[id(frame)] = error


def settle() -> None:
    """Called at the end of a function: raise the error of a loop in it, unless one is being raised."""
    error = _raised.pop(id(sys._getframe(1)), None)
    if error is not None and sys.exc_info()[1] is None:
        raise error
