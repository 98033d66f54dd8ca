"""The exception tree: every error that remat raises on purpose.

RematError
├── ProblemError     a problem, a memory or a number that is invalid           (also a ValueError)
├── ScheduleError    a schedule that cannot be read                            (also a ValueError)
│   └── IllegalError     a schedule that can be read but breaks a rule
├── FileError        a saved file that is damaged, too large or of another version
├── PlannerError     an unknown planner, or one that does not take the problem (also a ValueError)
├── StepError        a step, a state or an input that a loop cannot run with   (also a TypeError)
│   └── CarryError       a step returned a carry of another structure, shape or dtype; names the step and the leaf
├── SourceError      a function whose loops cannot be rewritten, with the line (also a ValueError)
├── ReportError      nothing to show, or no such format                        (also a ValueError)
├── DeterminismError a step whose recomputation gave a different result        (also a RuntimeError)
└── InfeasibleError  no schedule fits the memory; carries the smallest memory that works
"""

__all__ = [
    "CarryError",
    "DeterminismError",
    "FileError",
    "IllegalError",
    "InfeasibleError",
    "PlannerError",
    "ProblemError",
    "RematError",
    "ReportError",
    "ScheduleError",
    "SourceError",
    "StepError",
]


class RematError(Exception):
    """The root of all errors that remat raises on purpose."""


class ProblemError(RematError, ValueError):
    """A problem, a memory, or a number in one of them, is invalid."""


class ScheduleError(RematError, ValueError):
    """A schedule cannot be read, or is not legal."""


class IllegalError(ScheduleError):
    """A schedule breaks a rule."""


class FileError(RematError):
    """A saved file is damaged, too large, or of a version this remat does not read."""


class PlannerError(RematError, ValueError):
    """There is no planner of that name, or it does not take this problem and memory."""


class StepError(RematError, TypeError):
    """A step returns an invalid result, or a loop cannot run with the state or input that it is given."""


class CarryError(StepError):
    """A step returned a carry whose structure, shapes or dtypes differ from those of the carry it was given.

    `step` is the index of the step, `leaf` the path of the leaf or container, such as "carry[1]['h']".
    """

    def __init__(self, message: str, step: int = 0, leaf: str = "carry") -> None:
        super().__init__(message)
        self.step, self.leaf = step, leaf

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (str(self), self.step, self.leaf)


class SourceError(RematError, ValueError):
    """A loop in an ordinary Python function cannot be rewritten, or the rewritten loop cannot run.

    `file`, `line` and `column` say where; `code` is the offending source text.
    """

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.file, self.line, self.column, self.code = file, line, column, code

    def __reduce__(self) -> tuple[type, tuple[str, str, int, int, str]]:
        return type(self), (str(self), self.file, self.line, self.column, self.code)


class ReportError(RematError, ValueError):
    """There is nothing to show, or no such format to show it in."""


class DeterminismError(RematError, RuntimeError):
    """A recomputed step gave a different result, so the gradient would be wrong."""


class InfeasibleError(RematError):
    """No schedule fits the memory.

    `minimum` is the smallest amount that works, in `unit` ("bytes" or "slots"); `why` is what takes that, and `advice`
    what may be done instead of giving more, where they are known.
    """

    def __init__(self, message: str, minimum: int, unit: str, why: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.minimum, self.unit = minimum, unit
        self.why, self.advice = why, advice

    def __reduce__(self) -> tuple[type, tuple[str, int, str, str, str]]:
        return type(self), (str(self), self.minimum, self.unit, self.why, self.advice)
