"""remat: exact gradients of long loops, deep chains and graphs inside a memory budget.

Importing remat imports no framework.
"""

from remat.errors import FileError, IllegalError, InfeasibleError, PlannerError, ProblemError, RematError, ScheduleError
from remat.planners import Claim, Curve, Plan, Planner, plan, sweep
from remat.problem import Chain, Level, Loop, Memory, Stage
from remat.schedule import (
    Advance,
    Drop,
    Event,
    Fetch,
    Keep,
    Live,
    Op,
    Pullback,
    Record,
    Schedule,
    Trace,
    Turn,
    Verdict,
    simulate,
    verify,
)

__version__ = "0.1.0"

__all__ = [
    "Advance",
    "Chain",
    "Claim",
    "Curve",
    "Drop",
    "Event",
    "Fetch",
    "FileError",
    "IllegalError",
    "InfeasibleError",
    "Keep",
    "Level",
    "Live",
    "Loop",
    "Memory",
    "Op",
    "Plan",
    "Planner",
    "PlannerError",
    "ProblemError",
    "Pullback",
    "Record",
    "RematError",
    "Schedule",
    "ScheduleError",
    "Stage",
    "Trace",
    "Turn",
    "Verdict",
    "__version__",
    "plan",
    "simulate",
    "sweep",
    "verify",
]
