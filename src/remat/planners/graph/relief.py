"""Runs that fit a budget, found greedily: where too much is live, recompute what relieves it most for its time.

Starting from runs that need too much memory, each move recomputes an operation just before one of its later uses, so
that its first copy is freed in between. Of all such moves, the one is made that removes most bytes above the budget,
summed over the runs, per second it takes. Moves that turn out to be unnecessary are undone. The result is a start for
exact searches, or the plan itself if there is no exact search; each move costs a pass over the graph.
"""

from collections.abc import Iterator, Sequence

from remat.planners.graph.run_order import last_uses, live_bytes
from remat.problem import Graph

__all__ = ["least_possible", "relieved"]

Stages = dict[int, int]  # forward operation → the backward operation before which it is recomputed

SHORTEST = 1e-3  # the least time an operation counts for, as a fraction of the mean time of an operation


def relieved(graph: Graph, runs: Sequence[int], budget: int, effort: float = 2e6) -> list[int]:
    """Runs like these that fit the budget, or come closest; each forward operation is recomputed at most once.

    `effort` bounds the work: the number of runs of operations that are examined, about a second per million.
    """
    stages = _stages(graph, runs)
    over = _over(graph, stages, budget)
    shortest = SHORTEST * graph.advance_time(0, graph.units) / max(graph.units, 1)
    while over and effort > 0:
        best, gain, after = stages, 0.0, over
        for moved in _moves(graph, stages, budget):
            effort -= graph.units
            left = _over(graph, moved, budget)
            if left < over:
                relief = (over - left) / max(_seconds(graph, moved) - _seconds(graph, stages), shortest)
                if relief > gain:
                    best, gain, after = moved, relief, left
        if best is stages:
            break
        stages, over = best, after
    return _runs(graph, _without_unnecessary(graph, stages, budget, over))


def _moves(graph: Graph, stages: Stages, budget: int) -> Iterator[Stages]:
    """The stages after each move: recompute, before a later use, an operation that is live where too much is.

    Each operation is tried alone, so that its inputs are held until then, and together with the makers of those inputs
    that are not live then anyway, recursively.
    """
    runs = _runs(graph, stages)
    live, copies = live_bytes(graph, runs), last_uses(graph, runs)
    over = [place for place, size in enumerate(live) if size > budget]
    looked_at = {over[0], over[-1], max(over, key=live.__getitem__)}
    crowded = {
        graph.maker[storage]
        for (storage, made), last in copies.items()
        if any(made < place <= last for place in looked_at)
    }
    places = {operation: place for place, operation in enumerate(runs)}  # operation → position of its last run
    for operation in crowded & graph.run_again:
        users = (user for storage in graph.operations[operation].outputs for user in graph.users[storage])
        used = {graph.pause_before(user) if user >= graph.turn else stages.get(user, -1) for user in users}
        for stage in used - {-1, stages.get(operation)}:
            if stage >= graph.turn:
                yield {**stages, operation: stage}
                there = {s for (s, made), last in copies.items() if made < places[stage] <= last}
                together = _with_inputs(graph, operation, there)
                if len(together) > 1:
                    yield {**stages, **dict.fromkeys(together, stage)}


def _with_inputs(graph: Graph, operation: int, there: set[int]) -> list[int]:
    """An operation, and the makers of what it needs, directly or indirectly, that is not live (`there`)."""
    found, stack = [operation], [operation]
    while stack:
        for storage in graph.operations[stack.pop()].inputs:
            maker = graph.maker.get(storage)
            if maker in graph.run_again and storage not in there and maker not in found:
                found.append(maker)
                stack.append(maker)
    return found


def _seconds(graph: Graph, stages: Stages) -> float:
    return sum(graph.operations[operation].seconds for operation in stages)


def _without_unnecessary(graph: Graph, stages: Stages, budget: int, over: int) -> Stages:
    """The stages without unnecessary recomputations; the longest are tried first."""
    for operation in sorted(stages, key=lambda i: -graph.operations[i].seconds):
        fewer = {i: stage for i, stage in stages.items() if i != operation}
        if _over(graph, fewer, budget) <= over:
            stages = fewer
    return stages


def _over(graph: Graph, stages: Stages, budget: int) -> int:
    """Bytes above the budget, summed over all runs."""
    return sum(size - budget for size in live_bytes(graph, _runs(graph, stages)) if size > budget)


def _stages(graph: Graph, runs: Sequence[int]) -> Stages:
    """Which operations these runs recompute, and in which stage."""
    stages: Stages = {}
    waiting: list[int] = []
    for operation in runs[graph.turn :]:
        if operation < graph.turn:
            waiting.append(operation)
        else:
            stages.update(dict.fromkeys(waiting, operation))
            waiting = []
    return stages


def _runs(graph: Graph, stages: Stages) -> list[int]:
    placed: dict[int, list[int]] = {}
    for operation in sorted(stages):
        placed.setdefault(stages[operation], []).append(operation)
    runs = list(range(graph.turn))
    for stage in range(graph.turn, graph.units):
        runs += [*placed.get(stage, []), stage]
    return runs


def least_possible(graph: Graph) -> int:
    """A lower bound on the peak of any schedule: what one operation needs, and what cannot be freed at that time."""
    most = 0
    kept = {s for s, maker in graph.maker.items() if maker < graph.turn and maker not in graph.run_again}
    for i, each in enumerate(graph.operations):
        # What the backward made, and what cannot be recomputed, is never freed before its last use.
        lasting = {
            s
            for s, last in graph.last_use.items()
            if graph.maker[s] < i <= last and (s in kept or graph.maker[s] >= graph.turn)
        }
        needed = lasting | {s for s in (*each.reads, *each.outputs) if s in graph.maker}
        most = max(most, graph.bytes_of(needed) + each.workspace)
    return most
