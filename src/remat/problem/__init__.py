"""WHAT is reversed, and in how much memory.

In: numbers that a person writes or `measure` found. Out: immutable values, `Loop`, `Chain` and `Memory`, which
the planners, the verifier and the simulator read. They know nothing of schedules or frameworks.
"""

from remat.problem.chain import Chain, Stage
from remat.problem.loop import Loop
from remat.problem.memory import Level, Memory
from remat.problem.problem import Problem, Sizes

__all__ = ["Chain", "Level", "Loop", "Memory", "Problem", "Sizes", "Stage"]
