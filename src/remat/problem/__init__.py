"""WHAT is reversed, and in how much memory.

`Loop`, `Chain`, `Graph` and `Memory` are immutable values built from numbers that users give or remat measures. The
planners, the verifier and the simulator read them; they depend on neither schedules nor frameworks. `problem_kinds.py`
lists the kinds of problems.
"""

from remat.problem.chain import Chain
from remat.problem.graph import Graph
from remat.problem.loop import Loop
from remat.problem.memory import Level, Memory
from remat.problem.operation import Operation, Storage
from remat.problem.problem import Problem, Sizes
from remat.problem.problem_kinds import PROBLEM_KINDS, is_problem, kind_names, load_problem
from remat.problem.stage import Option, Stage

__all__ = [
    "PROBLEM_KINDS",
    "Chain",
    "Graph",
    "Level",
    "Loop",
    "Memory",
    "Operation",
    "Option",
    "Problem",
    "Sizes",
    "Stage",
    "Storage",
    "is_problem",
    "kind_names",
    "load_problem",
]
