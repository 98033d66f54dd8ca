"""remat: exact gradients of long loops, deep chains and graphs inside a memory budget.

`__all__` is the whole public API, in five groups. `remat.ops` holds the ops of a schedule, `remat.errors` the
exceptions, `remat.legacy` the functions of older systems, and `remat.testing` tools for tests.

Importing remat imports neither a framework nor remat's own packages: each name is loaded on first use.
"""

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

from remat.version import __version__

if TYPE_CHECKING:  # `_HOMES` again, for type checkers and editors; a test compares the two
    from remat import errors, legacy, ops, testing
    from remat.errors import CarryError as CarryError
    from remat.errors import DeterminismError as DeterminismError
    from remat.errors import FileError as FileError
    from remat.errors import IllegalError as IllegalError
    from remat.errors import InfeasibleError as InfeasibleError
    from remat.errors import PlannerError as PlannerError
    from remat.errors import ProblemError as ProblemError
    from remat.errors import RematError as RematError
    from remat.errors import ReportError as ReportError
    from remat.errors import ScheduleError as ScheduleError
    from remat.errors import SourceError as SourceError
    from remat.errors import StepError as StepError
    from remat.execute import is_recomputing
    from remat.interface import (
        adaptive_checkpoint,
        auto_checkpoint,
        chain,
        checkpoint,
        drop,
        explain,
        largest_batch,
        measure,
        replace_loops,
        scan,
        while_loop,
    )
    from remat.legacy import CheckpointGroup as CheckpointGroup
    from remat.legacy import CheckpointProfiler as CheckpointProfiler
    from remat.legacy import ag_tuple as ag_tuple
    from remat.legacy import binomial_checkpoint as binomial_checkpoint
    from remat.legacy import checkpoint_segment as checkpoint_segment
    from remat.legacy import checkpoint_segment_flex as checkpoint_segment_flex
    from remat.legacy import checkpointed_loop as checkpointed_loop
    from remat.legacy import compute_checkpoint_positions as compute_checkpoint_positions
    from remat.legacy import estimate_checkpoint_savings as estimate_checkpoint_savings
    from remat.legacy import get_memory_savings as get_memory_savings
    from remat.legacy import should_checkpoint as should_checkpoint
    from remat.ops import Advance as Advance
    from remat.ops import Drop as Drop
    from remat.ops import Fetch as Fetch
    from remat.ops import Keep as Keep
    from remat.ops import Op as Op
    from remat.ops import Pullback as Pullback
    from remat.ops import Record as Record
    from remat.ops import Turn as Turn
    from remat.planners import Claim as Claim
    from remat.planners import Curve as Curve
    from remat.planners import Plan, plan, save_points, sweep
    from remat.planners import Planner as Planner
    from remat.problem import Chain, Loop, Memory, Stage
    from remat.problem import Graph as Graph
    from remat.problem import Level as Level
    from remat.problem import Operation as Operation
    from remat.problem import Option as Option
    from remat.problem import Storage as Storage
    from remat.profiling import Profile as Profile
    from remat.profiling import profile
    from remat.reporting import report
    from remat.schedule import Event as Event
    from remat.schedule import Live as Live
    from remat.schedule import Schedule as Schedule
    from remat.schedule import Trace as Trace
    from remat.schedule import Verdict as Verdict
    from remat.schedule import simulate, verify
    from remat.source import checkpointed, grad, grad_with_checkpointing
    from remat.source import range as range

__all__ = [  # noqa: RUF022 (in groups)
    # plan
    "Chain",
    "Loop",
    "Memory",
    "Plan",
    "Stage",
    "plan",
    "sweep",
    # loops
    "checkpointed",
    "grad",
    "grad_with_checkpointing",
    "replace_loops",
    "save_points",
    "scan",
    "while_loop",
    # segments and chains
    "adaptive_checkpoint",
    "auto_checkpoint",
    "chain",
    "checkpoint",
    "drop",
    "is_recomputing",
    "largest_batch",
    "measure",
    # see
    "explain",
    "profile",
    "report",
    "simulate",
    "verify",
    # modules with the rest
    "errors",
    "legacy",
    "ops",
    "testing",
    "__version__",
]

# The package that defines each name. Names missing from `__all__` still resolve, so that old code keeps running.
_HOMES = {
    "errors": (
        "CarryError DeterminismError FileError IllegalError InfeasibleError PlannerError ProblemError RematError "
        "ReportError ScheduleError SourceError StepError"
    ),
    "execute": "is_recomputing",
    "interface": (
        "adaptive_checkpoint auto_checkpoint chain checkpoint drop explain largest_batch measure "
        "replace_loops scan while_loop"
    ),
    "legacy": (
        "CheckpointGroup CheckpointProfiler ag_tuple binomial_checkpoint checkpoint_segment checkpoint_segment_flex "
        "checkpointed_loop compute_checkpoint_positions estimate_checkpoint_savings get_memory_savings "
        "should_checkpoint"
    ),
    "ops": "Advance Drop Fetch Keep Op Pullback Record Turn",
    "planners": "Claim Curve Plan Planner plan save_points sweep",
    "problem": "Chain Graph Level Loop Memory Operation Option Stage Storage",
    "profiling": "Profile profile",
    "reporting": "report",
    "source": "checkpointed grad grad_with_checkpointing range",
    "schedule": "Event Live Schedule Trace Verdict simulate verify",
}
_lock = RLock()
_HOME_OF = {name: f"remat.{home}" for home, names in _HOMES.items() for name in names.split()}
_SUBMODULES = {
    "diffrax",
    "errors",
    "keras",
    "legacy",
    "ops",
    "planners",
    "problem",
    "profiling",
    "reporting",
    "schedule",
    "testing",
}


if not TYPE_CHECKING:  # a type checker that saw this would accept every name

    def __getattr__(name: str) -> Any:
        """Import the module that defines a public name, when the name is first used (PEP 562)."""
        if name not in _SUBMODULES and name not in _HOME_OF:
            raise AttributeError(f"module 'remat' has no attribute {name!r}")
        with _lock:  # two threads that import a package and its modules at the same time can deadlock
            if name in _SUBMODULES:
                return import_module(f"remat.{name}")
            value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value  # later lookups do not come here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
