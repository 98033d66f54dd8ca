"""The exception tree: every error that remat raises on purpose.

RematError
├── ProblemError     a problem, a memory or a number that makes no sense     (also a ValueError)
├── ScheduleError    a schedule that cannot be read                           (also a ValueError)
│   └── IllegalError     one that can be read and breaks a rule
├── FileError        a saved file that is damaged, too large or of another version
├── PlannerError     an unknown planner, or one that does not take the problem (also a ValueError)
├── StepError        a step, a state or an input that a loop cannot run with   (also a TypeError)
│   └── CarryError       a step returned a carry of another structure, shape or dtype; has its number and the leaf
├── SourceError      a function whose loops cannot be rewritten, with the line   (also a ValueError)
├── ReportError      nothing that can be shown, or not in that form             (also a ValueError)
├── DeterminismError a step that gave something else when it ran again
└── InfeasibleError  no schedule fits the memory; carries the smallest that works
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
    """A problem, a memory or a number in one makes no sense."""


class ScheduleError(RematError, ValueError):
    """A schedule cannot be read, or is not legal."""


class IllegalError(ScheduleError):
    """A schedule breaks a rule."""


class FileError(RematError):
    """A saved file is damaged, too large, or of a version this remat does not read."""


class PlannerError(RematError, ValueError):
    """There is no planner of that name, or it does not take this problem and memory."""


class StepError(RematError, TypeError):
    """A step returns what it must not, or a state or an input is nothing that a loop can run with."""


class CarryError(StepError):
    """A step returned a carry that does not have the structure, the shapes or the dtypes of the one it got.

    `step` is the number of the step, `leaf` the path of the leaf or container, such as "carry[1]['h']".
    """

    def __init__(self, message: str, step: int = 0, leaf: str = "carry") -> None:
        super().__init__(message)
        self.step, self.leaf = step, leaf

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (str(self), self.step, self.leaf)


class SourceError(RematError, ValueError):
    """A loop of an ordinary Python function cannot be rewritten, or not run as rewritten.

    `file`, `line` and `column` say where, `code` is the offending text.
    """

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.file, self.line, self.column, self.code = file, line, column, code

    def __reduce__(self) -> tuple[type, tuple[str, str, int, int, str]]:
        return type(self), (str(self), self.file, self.line, self.column, self.code)


class ReportError(RematError, ValueError):
    """There is nothing that can be shown, or no such form to show it in."""


class DeterminismError(RematError, RuntimeError):
    """A step gave something else when it ran again, so a gradient by recomputation would be wrong."""


class InfeasibleError(RematError):
    """No schedule fits the memory.

    `minimum` is the smallest amount that works, in `unit` ("bytes" or "slots").
    """

    def __init__(self, message: str, minimum: int, unit: str) -> None:
        super().__init__(message)
        self.minimum = minimum
        self.unit = unit

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (str(self), self.minimum, self.unit)
