"""The text form of a schedule, one op per line; parsing inverts printing.

    keep 0 ram
    advance 0 3
    record 3 4
    turn
    pullback 4 3

The parser takes lines from a person, a file or another program, trusted or not, and yields ops one by one, without
reading the whole file. Semicolons separate ops on a line. Blank lines and comments (#) are skipped; a first line
"# remat schedule 1" states the version.
"""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from remat.errors import FileError, ScheduleError
from remat.ops import OPS_BY_TYPE, OPS_BY_WORD, Op, Record, Turn  # noqa: F401 (Record, Turn: the doctest)

__all__ = ["HEADER", "ScheduleFile", "format_op", "parse_lines", "parse_text", "short_lines"]

HEADER = "# remat schedule 1"
_STEM = "# remat schedule "
_LONGEST = 200  # characters in a line at most; an op is a word and two or three numbers

_FORMS = "advance 3 9, record 9 12, keep 9 ram, fetch 9 ram, drop 9 ram, turn, pullback 12 9; for graphs run 12, free 7"


def format_op(op: Op) -> str:
    """The line for one op.

    >>> format_op(Record(9, 12)), format_op(Turn())
    ('record 9 12', 'turn')
    """
    spec = OPS_BY_TYPE.get(type(op))
    if spec is None:
        raise ScheduleError(f"{op!r} is not an op of the schedule language")
    option = getattr(op, spec.optional) if spec.optional else 0
    numbers = [str(getattr(op, field)) for field in spec.fields] + [str(option)] * bool(option)
    return " ".join([spec.word, *numbers])


def parse_op(line: str, where: str) -> Op:
    """The op in one line; raise a ScheduleError that starts with `where` if it is not an op."""
    word, *arguments = line.split()
    spec = OPS_BY_WORD.get(word)
    if spec is not None and len(spec.fields) <= len(arguments) <= len(spec.fields) + (spec.optional is not None):
        fields = zip((*spec.fields, "option"), arguments, strict=False)
        op: Op = spec.op(*[text if field == "level" else _number(text, where) for field, text in fields])
        return op
    raise ScheduleError(f"{where}: {line.strip()[:60]!r} is not an op; write one per line, as in: {_FORMS}")


def parse_lines(lines: Iterable[str], name: str = "line") -> Iterator[Op]:
    """The ops in these lines, one by one."""
    for number, line in enumerate(lines, 1):
        where = f"{name} {number}"
        if len(line) > _LONGEST:
            raise ScheduleError(f"{where} is longer than {_LONGEST} characters, and no op is")
        text = line.strip()
        if not text or text.startswith("#"):
            if text.startswith(_STEM) and text != HEADER:
                version = text.removeprefix(_STEM)[:20]
                raise FileError(f"{where}: schedule text of version {version}; this remat reads version 1")
            continue
        for op_text in filter(None, map(str.strip, text.split(";"))):
            yield parse_op(op_text, where)


def parse_text(text: str) -> Iterator[Op]:
    """The ops in a text, one by one."""
    return parse_lines(io.StringIO(text))


def short_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file; of a line that is too long, only as much is read as shows that it is."""
    return iter(lambda: file.readline(_LONGEST + 1), "")


class ScheduleFile:
    """The ops in a text file, read again at each iteration and never all in memory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __iter__(self) -> Iterator[Op]:
        try:
            with self.path.open(encoding="utf-8") as file:
                yield from parse_lines(short_lines(file), f"{self.path}, line")
        except UnicodeDecodeError as error:
            raise ScheduleError(f"{self.path} is not text: {error}") from None


def _number(word: str, where: str) -> int:
    if word.isascii() and word.isdigit() and len(word) <= 18:
        return int(word)
    raise ScheduleError(f"{where}: {word[:60]!r} is not a unit or state number (a whole number of up to 18 digits)")
