"""remat: exact gradients of long loops, deep chains and graphs inside a memory budget.

Importing remat imports no framework.
"""

from typing import TYPE_CHECKING, Any

from remat.errors import (
    DeterminismError,
    FileError,
    IllegalError,
    InfeasibleError,
    PlannerError,
    ProblemError,
    RematError,
    ReportError,
    ScheduleError,
    StepError,
)
from remat.execute import is_recomputing
from remat.interface import (
    CheckpointGroup,
    adaptive_checkpoint,
    checkpoint,
    checkpoint_segment,
    compute_checkpoint_positions,
    drop,
    estimate_checkpoint_savings,
    get_memory_savings,
    save_points,
    scan,
    should_checkpoint,
    while_loop,
)
from remat.legacy import binomial_checkpoint, checkpointed_loop
from remat.planners import Claim, Curve, Plan, Planner, plan, sweep
from remat.problem import Chain, Level, Loop, Memory, Stage
from remat.profiling import CheckpointProfiler, Profile, profile
from remat.reporting import report
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
from remat.version import __version__

if TYPE_CHECKING:
    from remat.frameworks.numpy import ag_tuple

__all__ = [
    "Advance",
    "Chain",
    "CheckpointGroup",
    "CheckpointProfiler",
    "Claim",
    "Curve",
    "DeterminismError",
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
    "Profile",
    "Pullback",
    "Record",
    "RematError",
    "ReportError",
    "Schedule",
    "ScheduleError",
    "Stage",
    "StepError",
    "Trace",
    "Turn",
    "Verdict",
    "__version__",
    "adaptive_checkpoint",
    "ag_tuple",
    "binomial_checkpoint",
    "checkpoint",
    "checkpoint_segment",
    "checkpointed_loop",
    "compute_checkpoint_positions",
    "drop",
    "estimate_checkpoint_savings",
    "get_memory_savings",
    "is_recomputing",
    "plan",
    "profile",
    "report",
    "save_points",
    "scan",
    "should_checkpoint",
    "simulate",
    "sweep",
    "verify",
    "while_loop",
]


def __getattr__(name: str) -> Any:
    """`ag_tuple` is autograd's, which is imported when it is asked for."""
    if name == "ag_tuple":
        from remat.frameworks.numpy import ag_tuple

        return ag_tuple
    raise AttributeError(f"module 'remat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
