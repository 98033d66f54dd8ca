"""One program, run plainly and with remat: the verdict."""

import linecache
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from remat.errors import RematError
from tests.random_programs.compare import Difference, compare
from tests.random_programs.observe import Seen


@dataclass(frozen=True)
class Program:
    """A program as text. `deserves` says of a RematError why the program deserves it, or nothing."""

    seed: int
    framework: str
    text: str
    features: dict[str, int]
    tolerance: float
    deserves: Callable[[RematError], str]
    run: Callable[["Program", Any], list[Seen]]  # the program with `remat` or with what takes its place

    def loaded(self, remat: Any) -> dict[str, Any]:
        """The program's functions, whose global `remat` is this. Tracebacks and `inspect` can find their lines."""
        name = f"<random program {self.framework} {self.seed}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        module = ModuleType("random_program")
        module.__dict__["remat"] = remat
        exec(compile(self.text, name, "exec"), module.__dict__)
        return module.__dict__


@dataclass(frozen=True)
class Verdict:
    """right, refused (as deserved), REFUSED (wrongly), WRONG, CRASH; or no program to judge by.

    It is invalid if it fails without remat, and chaotic if rounding alone makes of it what differs.
    """

    word: str
    what: str = ""
    difference: Difference = field(default_factory=Difference)

    @property
    def fails(self) -> bool:
        return self.word.isupper()


def judge(program: Program, remat: Any, plain: Any) -> Verdict:
    """How the program runs with `remat`, in comparison with `plain`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want: Sequence[Seen] = program.run(program, plain)
        except Exception as error:
            return Verdict("invalid", f"{type(error).__name__}: {error}")
        try:
            got = program.run(program, remat)
        except RematError as error:
            why = program.deserves(error)
            return Verdict("refused" if why else "REFUSED", why or _said(error))
        except Exception as error:
            return Verdict("CRASH", _said(error))
        difference = compare(want, got, program.tolerance)
        if difference.what and (chaos := _chaos(program, plain, want)):
            rest = [[seen for seen in run if seen.path not in chaos] for run in (want, got)]
            if not compare(*rest, program.tolerance).what:
                return Verdict("chaotic", difference.what)
    return Verdict("WRONG" if difference.what else "right", difference.what, difference)


def _chaos(program: Program, plain: Any, want: Sequence[Seen]) -> set[str]:
    """The values that the plain program does not repeat either when its parameters are changed in their last bit."""
    # Under autocast, whose programs have a large tolerance, that is a bit of bfloat16.
    noise = 2.0**-52 if program.tolerance < 0.01 else 2.0**-38
    shaken = {seen.path: seen for seen in program.run(program, replace(plain, noise=noise))}
    pairs = [(seen, shaken.get(seen.path)) for seen in want]
    return {seen.path for seen, other in pairs if other is None or compare([seen], [other], program.tolerance).what}


def _said(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({place})"
