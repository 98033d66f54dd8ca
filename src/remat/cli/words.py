"""Text on a terminal, wrapped to its width with a hanging indent; in a pipe, lines stay whole for other programs."""

import shutil
import sys
from textwrap import fill
from typing import TextIO

__all__ = ["PLAN_INDENT", "show", "tell"]

PLAN_INDENT = 9  # where the values of a printed plan or trace begin


def tell(message: str) -> None:
    """Write a message to stderr."""
    print(_wrapped(message, sys.stderr, indent=0), file=sys.stderr)


def show(text: object, *, indent: int, file: TextIO | None = None) -> None:
    """Write text to stdout or to `file`; a long line continues in column `indent`."""
    stream = file or sys.stdout
    print("\n".join(_wrapped(line, stream, indent=indent) for line in str(text).splitlines()), file=stream)


def _wrapped(line: str, stream: TextIO, *, indent: int) -> str:
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or len(line) <= width or width < 2 * indent + 20:
        return line
    # File names and numbers with units are not broken, so that they can be copied.
    return fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
