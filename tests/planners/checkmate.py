"""Checkmate's integer program (Jain et al. 2020) in HiGHS: an independent optimum for a fixed order of operations.

Stage t computes operation t for the first time, and others again before it, in their order. R[t, i]: stage t computes
i. S[t, i]: what i made is held when stage t begins. F[t, j, i]: it is freed in stage t after j ran. U[t, i]: bytes live
while i runs. Each operation has one output here, and backward operations may be run again as well.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from remat.problem import Graph


class Program:
    """Variables by name, rows of constraints, and the least cost of them."""

    def __init__(self) -> None:
        self.number: dict[tuple, int] = {}
        self.rows: list[tuple[dict[tuple, float], float, float]] = []

    def add(self, terms: dict[tuple, float], low: float, high: float) -> None:
        for name in terms:
            self.number.setdefault(name, len(self.number))
        self.rows.append((terms, low, high))

    def least(self, cost: Callable[[tuple], float], upper: Callable[[tuple], float]) -> float | None:
        names = list(self.number)
        matrix = lil_matrix((len(self.rows), len(names)))
        for row, (terms, _, _) in enumerate(self.rows):
            for name, factor in terms.items():
                matrix[row, self.number[name]] += factor
        low, high = np.array([r[1] for r in self.rows]), np.array([r[2] for r in self.rows])
        result = milp(
            np.array([cost(name) for name in names]),
            constraints=LinearConstraint(matrix.tocsr(), low, high),
            integrality=np.array([name[0] != "U" for name in names], dtype=int),
            bounds=Bounds(0, np.array([upper(name) for name in names])),
        )
        return float(result.fun) if result.success else None


def checkmate_seconds(graph: Graph, budget: int) -> float | None:
    """The least seconds of all operations in the budget, or None if there is no schedule."""
    n, program = graph.units, Program()
    size = [graph.bytes_of(each.outputs) for each in graph.operations]
    inputs = [[graph.maker[s] for s in reads] for reads in graph.made_reads]
    users = [[k for k in range(n) if i in inputs[k]] for i in range(n)]
    for t in range(n):
        program.add({("R", t, t): 1}, 1, 1)
        for i in range(t + 1):
            for j in inputs[i]:  # computed only from what is held, or computed in this stage
                program.add({("R", t, i): 1, ("R", t, j): -1, ("S", t, j): -1}, -np.inf, 0)
        for i in range(t):  # held only if it was held or computed in the stage before
            before = {("R", t - 1, i): -1, **({("S", t - 1, i): -1} if i < t - 1 else {})}
            program.add({("S", t, i): 1, **before}, -np.inf, 0)
        _memory(program, t, n, size, inputs, users)
    seconds = [each.seconds for each in graph.operations]
    return program.least(
        lambda name: seconds[name[2]] if name[0] == "R" else 0.0,
        lambda name: budget if name[0] == "U" else 1.0,
    )


def _memory(program: Program, t: int, n: int, size: list[int], inputs: list[list[int]], users: list[list[int]]) -> None:
    """Bytes live in stage t, operation by operation, with what is freed between them."""
    held = {("S", t, i): -float(size[i]) for i in range(t)}
    program.add({("U", t, 0): 1, ("R", t, 0): -float(size[0]), **held}, 0, 0)
    for k in range(t):
        freed = {("F", t, k, i): float(size[i]) for i in (*inputs[k], k)}
        program.add({("U", t, k + 1): 1, ("U", t, k): -1, ("R", t, k + 1): -float(size[k + 1]), **freed}, 0, 0)
        for i in (*inputs[k], k):
            # Freed after k if and only if k ran, nothing later in the stage uses it and the next stage does not hold it
            later = [j for j in users[i] if k < j <= t]
            kept = {("S", t + 1, i): 1.0} if t + 1 < n else {}
            hazards = {("R", t, k): -1.0, **kept, **{("R", t, j): 1.0 for j in later}}
            count = 1 + len(kept) + len(later)
            program.add({("F", t, k, i): 1, ("R", t, k): -1}, -np.inf, 0)
            for name in [*kept, *(("R", t, j) for j in later)]:
                program.add({("F", t, k, i): 1, name: 1}, -np.inf, 1)
            program.add({("F", t, k, i): count, **hazards}, -np.inf, count)
