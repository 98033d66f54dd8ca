"""Messages of the loops with the user's names and lines: `mode` for `carry[1]`, the name of a list for `y[0]`."""

import linecache
import re
import sys
from typing import NoReturn

from remat.errors import SourceError
from remat.source.loop_info import LoopInfo

__all__ = ["refuse_line", "with_names"]


def with_names(message: str, info: LoopInfo) -> str:
    """A loop's message with the names of the user's variables in place of items of the carry."""

    def name(match: re.Match[str]) -> str:
        place = int(match[2])
        return info.carry[place] if place < len(info.carry) else match[0]

    def output(match: re.Match[str]) -> str:
        names = (*info.lists, *info.arrays)
        return f"what {names[int(match[1])]} gets" if int(match[1]) < len(names) else match[0]

    other_kind = r"(is|became) an? remat\.source\.run_time\.statics\.\w+( of|:).*?(?=$|\n)"
    message = re.sub(other_kind, r"\1 something of another kind", message)
    message = re.sub(r"\by\[(\d+)\]", output, message)
    if len(info.carry) == 1:  # its value is the carry itself
        message = re.sub(r"^carry (?=was|is|has|became)", f"{info.carry[0]} ", message)
    return re.sub(r"\b(carry|init)\[(\d+)\]", name, message)


def refuse_line(why: str, how: str = "") -> NoReturn:
    """Raise a SourceError for the line of the user's that called the run time."""
    frame = sys._getframe(1)
    called = frame.f_code.co_filename
    while frame.f_back is not None and frame.f_code.co_filename == called:
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, line).strip()
    raise SourceError(f"{file}, line {line}: {why}\n    {code}{how and chr(10) + how}", file, line, 0, code)
