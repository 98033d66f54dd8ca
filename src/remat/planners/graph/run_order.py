"""From an order of runs to a schedule of a graph.

The order of the runs decides everything else: each use of a storage is best served by the latest run of its maker, and
the copy is freed after its last use before the maker's next run. Holding a copy any longer would only take memory.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from remat.ops import Free, Op, Run
from remat.problem import Graph

__all__ = ["just_in_time", "kept_at_turn", "last_uses", "live_bytes", "plain_runs", "with_frees"]


def plain_runs(graph: Graph) -> list[int]:
    """Every operation once."""
    return list(range(graph.units))


def just_in_time(graph: Graph, kept: Collection[int]) -> list[int]:
    """The runs if the forward keeps these storages and the backward recomputes others when it first needs them.

    Each is recomputed once, in the last pause before its first use, and then held until its last use. Storages that
    cannot be recomputed are kept in any case.
    """
    have = {*graph.given, *kept}
    have.update(s for s, maker in graph.maker.items() if maker < graph.turn and maker not in graph.run_again)
    have.update(_wanted(graph, graph.turn) if graph.turn not in graph.pauses else ())
    runs = list(range(graph.turn))
    for backward in range(graph.turn, graph.units):
        for operation in _missing(graph, _wanted(graph, backward), have):
            have.update(graph.operations[operation].outputs)
            runs.append(operation)
        have.update(graph.operations[backward].outputs)
        runs.append(backward)
    return runs


def _wanted(graph: Graph, backward: int) -> Iterator[int]:
    """The forward's storages that a backward operation reads, and those read by the next ones until the next pause.

    Before the first pause nothing can be recomputed, so what is read there is kept.
    """
    place = bisect_right(graph.pauses, backward)
    after = graph.pauses[place] if place < len(graph.pauses) else graph.units
    for each in range(backward, after):
        yield from (s for s in graph.operations[each].reads if graph.maker.get(s, graph.turn) < graph.turn)


def _missing(graph: Graph, wanted: Iterable[int], have: set[int]) -> list[int]:
    """The operations that make the `wanted` storages from those we `have`, in an order in which they can run."""
    order: dict[int, None] = {}
    stack = [(graph.maker[s], False) for s in reversed(list(wanted)) if s not in have]
    while stack:
        operation, ready = stack.pop()
        if operation in order:
            continue
        if ready:
            order[operation] = None
            continue
        stack.append((operation, True))
        stack += [(graph.maker[s], False) for s in reversed(graph.operations[operation].inputs) if s not in have]
    return list(order)


def with_frees(graph: Graph, runs: Sequence[int]) -> tuple[Op, ...]:
    """The schedule with these runs that has the fewest bytes live at any time."""
    until = last_uses(graph, runs)
    freed: list[list[int]] = [[] for _ in runs]
    for (storage, _), last in until.items():
        if last < len(runs):
            freed[last].append(storage)
    ops: list[Op] = []
    for place, operation in enumerate(runs):
        ops.append(Run(operation))
        ops += [Free(storage) for storage in freed[place]]
    return tuple(ops)


def live_bytes(graph: Graph, runs: Sequence[int]) -> list[int]:
    """Bytes live at each run of the schedule `with_frees`: the same as a simulation, in a fraction of its time."""
    operations, sizes, count = graph.operations, graph.sizes, len(runs)
    change, made, last = [0] * (count + 2), [-1] * len(sizes), [0] * len(sizes)
    held = [graph.turn - 1 if s in graph.outputs else 0 for s in range(len(sizes))]
    for place, operation in enumerate(runs):
        for storage in graph.made_reads[operation]:
            last[storage] = place
        for storage in operations[operation].outputs:
            if made[storage] >= 0:
                change[max(last[storage], held[storage]) + 1] -= sizes[storage]
            made[storage] = last[storage] = place
            change[place] += sizes[storage]
    for storage in graph.maker:
        ends = count if storage in graph.results and graph.maker[storage] >= graph.turn else last[storage]
        change[max(ends, held[storage]) + 1] -= sizes[storage]
    return [live + operations[each].workspace for live, each in zip(accumulate(change), runs, strict=False)]


def kept_at_turn(graph: Graph, runs: Sequence[int]) -> frozenset[int]:
    """The forward's storages that are held for the backward: those whose first copy is used after the turn."""
    return frozenset(
        storage
        for (storage, place), last in last_uses(graph, runs).items()
        if place < graph.turn <= last and storage not in graph.given
    )


def last_uses(graph: Graph, runs: Sequence[int]) -> dict[tuple[int, int], int]:
    """For each copy, as (storage, position of the run that makes it), the position of the last run that needs it.

    A result of the backward is needed after the last run. The forward runs once, in order, so before the turn positions
    and operations are the same.
    """
    until: dict[tuple[int, int], int] = {}
    made: dict[int, int] = {}  # storage → position of the latest run that makes it
    for place, operation in enumerate(runs):
        for storage in graph.operations[operation].reads:
            if storage in made:
                until[storage, made[storage]] = place
        for storage in graph.operations[operation].outputs:
            made[storage] = place
            until[storage, place] = place
    for storage in graph.results:
        if storage in graph.maker:
            place = graph.maker[storage]
            if place < graph.turn:
                until[storage, place] = max(until[storage, place], graph.turn - 1)
            else:
                until[storage, made[storage]] = len(runs)
    return until
