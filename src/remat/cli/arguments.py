"""Arguments that several commands share, and how they become a problem, a memory or a schedule."""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remat.cli.parser import did_you_mean
from remat.errors import FileError, ProblemError
from remat.planners import Plan
from remat.planners.loop.chunks import Chunks
from remat.planners.plan import saved_ops
from remat.planners.planner import Planner
from remat.planners.registry import planner_for
from remat.problem import Level, Loop, Memory, Problem, load_problem
from remat.problem.serialization import check_envelope, in_file, read_json, read_limited
from remat.schedule import Op, Schedule
from remat.schedule.notation import ScheduleFile, parse_lines, short_lines

__all__ = [
    "add_memory",
    "add_planner",
    "add_problem",
    "ask_for_sizes",
    "check_exists",
    "check_folder",
    "read_choice",
    "read_memory",
    "read_planner",
    "read_problem",
    "read_subject",
    "read_whole",
    "refuse_to_overwrite",
]


LOOP_SIZES = ("state", "tape")
LOOP_TIMES = ("forward", "record", "backward", "per_range")


def add_problem(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the arguments that describe a loop, or name a file with a saved problem of any kind."""
    group = parser.add_argument_group("the problem: a loop, or a file")
    either = group.add_mutually_exclusive_group(required=required)
    either.add_argument("--steps", metavar="N", help='how many steps the loop has, or "unknown"')
    either.add_argument("--problem", metavar="FILE", help="a saved Chain, Graph or Loop (chain.save) instead of a loop")
    group.add_argument("--state", metavar="SIZE", help="bytes of a state, such as 1MiB (a budget in bytes needs it)")
    group.add_argument("--tape", metavar="SIZE", help="bytes of one step's tape (a budget in bytes needs it)")
    group.add_argument("--forward", metavar="TIME", help="time of a step without tape, such as 20ms (default: 1)")
    group.add_argument("--record", metavar="TIME", help="time of a step with tape (default: as forward)")
    group.add_argument("--backward", metavar="TIME", help="time of pulling back a step (default: 2)")
    group.add_argument("--per-range", metavar="TIME", help="time of each recorded range (default: 0)")
    group.add_argument("--restartable", action="store_true", help="a step's tape also holds its output")


def read_problem(arguments: argparse.Namespace) -> Problem:
    """The problem that the arguments describe or name."""
    if arguments.problem is not None:
        _refuse_loop_options(arguments, arguments.problem)
        check_exists(arguments.problem)
        with in_file(arguments.problem):
            return load_problem(read_json(read_limited(arguments.problem)))
    steps = None if arguments.steps == "unknown" else read_whole(arguments.steps, "steps")
    return Loop(steps, **_loop_options(arguments))


def _loop_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given arguments about a loop other than its steps, by the names of `Loop`'s fields."""
    values: dict[str, Any] = {name: getattr(arguments, name) for name in (*LOOP_SIZES, *LOOP_TIMES)}
    given = {name: value for name, value in values.items() if value is not None}
    given |= {name: _time(value) for name, value in given.items() if name in LOOP_TIMES}
    return given | ({"restartable": True} if arguments.restartable else {})


def _refuse_loop_options(arguments: argparse.Namespace, file: str) -> None:
    """Raise a ProblemError for arguments that would be ignored because `file` has its own values."""
    if given := [f"--{name.replace('_', '-')}" for name in _loop_options(arguments)]:
        raise ProblemError(
            f"{', '.join(given)}: sizes and times of a loop of --steps N; what is saved in {file} has its own. "
            "Leave them out, or save another problem"
        )


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a memory: --slots, --memory, or one or more --level."""
    group = parser.add_argument_group("the memory (one of)")
    group.add_argument("--slots", metavar="N", help="a count of states")
    group.add_argument("--memory", metavar="SIZE", help="bytes of peak, such as 64MiB")
    group.add_argument(
        "--level",
        action="append",
        metavar="NAME,SIZE[,READ,WRITE]",
        help="a level: SIZE is bytes, 3slots or inf; READ and WRITE are times per byte (repeat for more levels)",
    )


def read_memory(arguments: argparse.Namespace) -> Memory:
    """The memory that the arguments describe; a budget in bytes requires the sizes of a loop's states and tapes."""
    memory = _memory(arguments)
    if any(level.capacity is not None for level in memory.levels):
        ask_for_sizes(arguments, "a budget in bytes")
    return memory


def ask_for_sizes(arguments: argparse.Namespace, what: str) -> None:
    """Raise a ProblemError if arguments describe a loop without its sizes."""
    missing = [f"--{name}" for name in LOOP_SIZES if getattr(arguments, name) is None]
    if arguments.steps is not None and missing:
        raise ProblemError(
            f"{what} needs to know how large a step's state and tape are: give {' and '.join(missing)}, such as "
            "--state 1MiB --tape 9MiB, or count states by --slots N"
        )


def _memory(arguments: argparse.Namespace) -> Memory:
    budgets = [value for value in (arguments.slots, arguments.memory, arguments.level) if value is not None]
    if len(budgets) != 1:
        raise ProblemError("give one of --slots N, --memory SIZE or --level NAME,SIZE")
    if arguments.level is not None:
        return Memory(levels=[_level(text) for text in arguments.level])
    if arguments.slots is not None:
        return Memory(slots=read_whole(arguments.slots, "slots"))
    return Memory(arguments.memory)


def add_planner(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a planner."""
    parser.add_argument("--planner", default="auto", metavar="NAME", help="see `remat planners` (default auto)")
    parser.add_argument("--chunk", metavar="K", help="steps in a range, for the chunks planner")


def read_planner(arguments: argparse.Namespace, problem: Problem) -> Planner[Any]:
    """The planner that the arguments name for the problem."""
    if arguments.chunk is None:
        return planner_for(problem, arguments.planner)
    if arguments.planner not in ("auto", "chunks"):
        raise ProblemError(f"--chunk is for the chunks planner, not {arguments.planner}")
    return Chunks(read_whole(arguments.chunk, "chunk"))


def read_subject(arguments: argparse.Namespace) -> tuple[Schedule, Problem, Memory | None]:
    """The schedule in a file (a saved plan, or text; - is stdin), its problem, and its memory if there is one.

    A saved plan contains a problem and a memory; arguments override them.
    """
    if arguments.file != "-":
        check_exists(arguments.file)
    described = arguments.steps is not None or arguments.problem is not None
    problem = read_problem(arguments) if described else None
    has_budget = any(value is not None for value in (arguments.slots, arguments.memory, arguments.level))
    memory = read_memory(arguments) if has_budget else None
    if arguments.file != "-" and _is_json(Path(arguments.file)):
        if problem is None:
            _refuse_loop_options(arguments, arguments.file)
        with in_file(arguments.file):
            data = check_envelope(read_json(read_limited(arguments.file)), Plan.kind, Plan.version)
            problem = problem or load_problem(data.get("problem"))
            return saved_ops(data), problem, memory or Memory.from_envelope(data.get("memory"))
    if problem is None:
        raise ProblemError("a schedule in text does not say how long the loop is: give --steps, or --problem")
    return Schedule(_text_ops(arguments.file)), problem, memory


def _text_ops(name: str) -> ScheduleFile | tuple[Op, ...]:
    if name == "-":
        return tuple(parse_lines(short_lines(sys.stdin), "stdin, line"))
    if Path(name).is_file():
        return ScheduleFile(name)
    return tuple(ScheduleFile(name))  # a pipe can be read only once


def _is_json(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _level(text: str) -> Level:
    name, _, values = text.partition(",")
    size, *speeds = values.split(",")
    if len(speeds) not in (0, 2) or not size:
        raise ProblemError(f"--level {text[:60]!r}: write NAME,SIZE or NAME,SIZE,READ,WRITE")
    read, write = map(_time, speeds) if speeds else (0.0, 0.0)
    if size == "inf":
        return Level(name, read=read, write=write)
    if size.endswith("slots"):
        return Level(name, slots=read_whole(size.removesuffix("slots"), "slots"), read=read, write=write)
    return Level(name, size, read=read, write=write)


_WHOLE = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.(\d*))?(?:e\+?(\d{1,2}))?([kmg]?)", re.IGNORECASE | re.ASCII)
_THOUSANDS = {"": 0, "k": 3, "m": 6, "g": 9}


def read_whole(text: str | int, name: str) -> int:
    """An argument as a whole number: 1000, 1_000, 1e3, 1k or 1.5k.

    >>> [read_whole(text, "steps") for text in ("1000", "1e3", "1k", "2.5k", "1M")]
    [1000, 1000, 1000, 2500, 1000000]
    """
    match = _WHOLE.fullmatch(str(text)) if len(str(text)) <= 40 else None
    if match is not None:
        whole, part = match[1].replace("_", ""), (match[2] or "").rstrip("0")
        power = int(match[3] or 0) + _THOUSANDS[match[4].lower()] - len(part)
        if power >= 0:
            return int(whole + part + "0" * power)
    raise ProblemError(f"{name} must be a whole number, such as 1000, 1e3 or 1k, not {str(text)[:40]!r}")


def read_choice(text: str, choices: Iterable[str], name: str) -> str:
    """An argument that is one of several words."""
    if text not in (known := [*choices]):
        raise ProblemError(f"{name} is one of {', '.join(known)}, not {text[:40]!r}{did_you_mean(text, known)}")
    return text


def _time(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def refuse_to_overwrite(path: str, force: bool) -> None:
    """Raise a FileError if `path` exists, unless `force` is set."""
    if Path(path).exists() and not force:
        raise FileError(f"{path} exists; give --force to write over it")


def check_exists(path: str) -> None:
    """Raise a FileError if there is no file at `path`; it suggests a file with a similar name in the same folder."""
    if not Path(path).exists():
        folder = Path(path).parent
        if not folder.is_dir():
            raise FileError(f"there is no file {path}, as there is no folder {folder}")
        found = did_you_mean(Path(path).name, (each.name for each in folder.iterdir()))
        raise FileError(f"there is no file {path}{found}")


def check_folder(path: str) -> None:
    """Raise a FileError if there is no folder to write `path` into."""
    if not Path(path).parent.is_dir():
        raise FileError(f"there is no folder {Path(path).parent} to write {Path(path).name} into")
