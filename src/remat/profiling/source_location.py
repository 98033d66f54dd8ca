"""Places in source files: where a call was made, where a step is written."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

__all__ = ["SourceLocation", "definition_of", "user_frame"]

INSIDE = ("remat", "autograd", "torch", "jax", "jaxlib", "contextlib")  # packages whose frames are not the user's


@dataclass(frozen=True)
class SourceLocation:
    """A line in a file, and the function it is in."""

    file: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """The file's name and the line."""
        return f"{PurePath(self.file).name}:{self.line}" if self.file else "somewhere"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else "somewhere"

    def to_dict(self) -> dict[str, Any]:
        """The site as plain data."""
        return {"file": self.file, "line": self.line, "function": self.function}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SourceLocation":
        """The site from plain data."""
        return cls(str(data["file"]), int(data["line"]), str(data["function"]))


def user_frame() -> SourceLocation:
    """Where the innermost frame is that belongs to the user."""
    frame = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in INSIDE or frame.f_globals.get("__name__", "").startswith("remat.cli"):
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return SourceLocation("", 0, "")


def definition_of(function: Callable[..., Any] | None) -> SourceLocation | None:
    """Where a function is written, or None where that is not known."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None and callable(inner):
        method = getattr(type(inner), "forward", type(inner).__call__)  # of a module, what its author wrote
        code = getattr(method, "__code__", None)
    return None if code is None else SourceLocation(code.co_filename, code.co_firstlineno, code.co_name)
