"""Source locations: where a remat call was made, and where its step is defined."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from pathlib import PurePath
from types import FrameType
from typing import Any

__all__ = ["SourceLocation", "definition_of", "is_internal", "place_of", "user_frame"]

# Top-level packages whose frames are skipped.
INSIDE = frozenset({"remat", "autograd", "torch", "jax", "jaxlib", "numpy"}) | sys.stdlib_module_names - {"__main__"}

_FOLDER = str(PurePath(__file__).parent.parent)


@dataclass(frozen=True)
class SourceLocation:
    """A line of a file and the function around it; the file name is empty if unknown."""

    file: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """The file name without folders, and the line."""
        return f"{PurePath(self.file).name}:{self.line}" if self.file else "somewhere"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else "somewhere"

    def to_dict(self) -> dict[str, Any]:
        """The location as plain data."""
        return {"file": self.file, "line": self.line, "function": self.function}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SourceLocation":
        """The location from plain data."""
        return cls(str(data["file"]), int(data["line"]), str(data["function"]))


def is_internal(frame: FrameType) -> bool:
    """Whether a frame is remat's, a framework's or the standard library's."""
    name = str(frame.f_globals.get("__name__", ""))
    # Examples that the command line runs count as user programs. A method that remat adds to a user's class has that
    # class's globals, so its file is checked too. Methods of named tuples and dataclasses come from "<string>".
    file = frame.f_code.co_filename
    ours = name.partition(".")[0] in INSIDE or file.startswith(_FOLDER) or (file == "<string>" and name != "__main__")
    return ours and not name.startswith("remat.cli")


def user_frame() -> SourceLocation:
    """The innermost frame on the stack that is not remat's or a framework's."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_internal(frame):
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return SourceLocation("", 0, "")


def place_of(function: Callable[..., Any]) -> str:
    """File and line of a function's definition, for messages; empty if unknown."""
    location = definition_of(function)
    return "" if location is None else f"{location.file}, line {location.line}"


def definition_of(function: Callable[..., Any] | None) -> SourceLocation | None:
    """Where a function is defined, or None if unknown (builtins, compiled code)."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None and callable(inner):
        # In a torch module, the user wrote `forward`; `__call__` is torch's.
        method = unwrap(getattr(type(inner), "forward", type(inner).__call__))  # remat's methods wrap the user's
        code = getattr(method, "__code__", None)
    return None if code is None else SourceLocation(code.co_filename, code.co_firstlineno, code.co_name)
