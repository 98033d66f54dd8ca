"""The exception tree: every error that remat raises on purpose.

RematError
├── ProblemError     a problem, a memory or a number that makes no sense     (also a ValueError)
├── ScheduleError    a schedule that cannot be read                           (also a ValueError)
│   └── IllegalError     one that can be read and breaks a rule
├── FileError        a saved file that is damaged, too large or of another version
├── PlannerError     an unknown planner, or one that does not take the problem (also a ValueError)
├── StepError        a step, a state or an input that a loop cannot run with   (also a TypeError)
├── ReportError      nothing that can be shown, or not in that form             (also a ValueError)
├── DeterminismError a step that gave something else when it ran again
└── InfeasibleError  no schedule fits the memory; carries the smallest that works
"""

__all__ = [
    "DeterminismError",
    "FileError",
    "IllegalError",
    "InfeasibleError",
    "PlannerError",
    "ProblemError",
    "RematError",
    "ReportError",
    "ScheduleError",
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
