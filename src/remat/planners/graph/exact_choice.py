"""The fastest choice of what to keep in a given number of bytes, solved exactly by OR-Tools' CP-SAT.

These points lie above the lower hull, so no price per byte finds them. The question for a block has some dozens of
variables and takes milliseconds.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from remat.errors import PlannerError
from remat.planners.graph.keep_choice import Choice, KeepQuestion

__all__ = ["between", "cp_model", "fastest_in", "has_cp_sat"]

SECONDS = 10.0  # time limit for one question; what is not proved optimal by then is discarded
NARROWEST = 1 / 200  # gaps narrower than this fraction of all bytes are not searched


def between(question: KeepQuestion, points: Sequence[Choice], most: int) -> list[Choice]:
    """Up to `most` choices between those of a hull, each the fastest for its bytes; the widest gaps come first."""
    ordered = sorted(points, key=lambda point: point.bytes)
    gaps = [(a.bytes, b.bytes) for a, b in pairwise(ordered)]
    narrowest = max(1, (ordered[-1].bytes - ordered[0].bytes) * NARROWEST)
    found: dict[int, Choice] = {}
    for _ in range(4 * most):
        gaps.sort(key=lambda gap: gap[1] - gap[0])
        if len(found) >= most or not gaps or gaps[-1][1] - gaps[-1][0] <= narrowest:
            break
        low, high = gaps.pop()
        cap = (low + high) // 2
        choice = fastest_in(question, cap)
        if choice is None:
            continue
        if choice.bytes > low:
            found[choice.bytes] = choice
        # No choice between its bytes and the cap is faster; the ranges below and above remain open.
        gaps += [(low, choice.bytes), (cap, high)]
    return list(found.values())


def fastest_in(question: KeepQuestion, cap: int) -> Choice | None:
    """The fastest choice that keeps at most `cap` bytes; of equally fast ones, the one that keeps fewest."""
    model, run, keep = _model(question)
    ticks = sum(question.ticks[i] * variable for i, variable in run.items())
    size = sum(question.price(s) * variable for s, variable in keep.items())
    model.add(size <= cap)
    model.minimize(ticks)
    remade = _solved(model, run)
    if remade is None:
        return None
    model.add(ticks <= sum(question.ticks[i] for i in remade))
    model.minimize(size)
    remade = _solved(model, run)
    return None if remade is None else question.choice(remade)


def _model(question: KeepQuestion) -> tuple[Any, dict[int, Any], dict[int, Any]]:
    model = cp_model().CpModel()
    run = {i: model.new_bool_var("") for i in question.operations if i in question.graph.run_again}
    keep = {s: model.new_bool_var("") for s in question.storages}
    for storage in question.graph.saved:
        model.add_bool_or(_available(question, storage, run, keep))
    for i, again in run.items():
        for storage in question.inputs(i):
            model.add_bool_or([*_available(question, storage, run, keep), again.negated()])
    return model, run, keep


def _available(question: KeepQuestion, storage: int, run: dict[int, Any], keep: dict[int, Any]) -> list[Any]:
    maker = question.graph.maker[storage]
    return [keep[storage], run[maker]] if maker in run else [keep[storage]]


def _solved(model: Any, run: dict[int, Any]) -> list[int] | None:
    solver = cp_model().CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = SECONDS
    if solver.solve(model) != cp_model().OPTIMAL:
        return None
    return [i for i, variable in run.items() if solver.boolean_value(variable)]


def has_cp_sat() -> bool:
    """Whether OR-Tools can be imported."""
    try:
        cp_model()
    except PlannerError:
        return False
    return True


def cp_model() -> Any:
    """OR-Tools' CP-SAT module, imported on first use."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise PlannerError("exact plans of graphs need OR-Tools: pip install ortools") from None
    return cp_model
