"""The package as a whole: its public names, what importing it costs, its tables."""

import importlib
import pkgutil
import subprocess
import sys

import remat
from remat import ops
from remat.planners import PLANNERS, Planner
from remat.planners import exhaustive as exhaustive_module
from remat.planners import loop as loop_room

PUBLIC = """
Advance Chain CheckpointGroup CheckpointProfiler Claim Curve DeterminismError Drop Event Fetch FileError IllegalError
InfeasibleError Keep Level Live Loop Memory Op Plan Planner PlannerError ProblemError Profile Pullback Record RematError
ReportError Schedule ScheduleError Stage StepError Trace Turn Verdict __version__ adaptive_checkpoint ag_tuple
binomial_checkpoint checkpoint checkpoint_segment checkpointed_loop compute_checkpoint_positions drop
estimate_checkpoint_savings get_memory_savings is_recomputing plan profile report save_points scan should_checkpoint
simulate sweep verify while_loop
"""


def test_public_names_are_these():
    assert remat.__all__ == PUBLIC.split()
    assert all(hasattr(remat, name) for name in PUBLIC.split())


def test_importing_remat_imports_no_framework_and_little_else():
    code = "import sys, remat; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "jax", "tensorflow", "keras", "autograd", "rich", "hypothesis", "numpy"} & set(loaded)


def test_every_planner_file_has_its_line_in_the_table():
    found = set()
    for module in pkgutil.iter_modules(loop_room.__path__, loop_room.__name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Planner) and value.__module__ == module.name:
                found.add(value)
    found.add(exhaustive_module.Exhaustive)
    assert found == set(PLANNERS.values()) - {PLANNERS["auto"]}
    assert all(planner.name == name and planner.summary for name, planner in PLANNERS.items())


def test_every_op_says_how_it_is_read():
    for name in ("Advance", "Record", "Keep", "Fetch", "Drop", "Turn", "Pullback"):
        assert "is read as:" in getattr(ops, name).__doc__
