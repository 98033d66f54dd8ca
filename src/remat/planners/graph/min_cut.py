"""The lower convex hull of all choices of what to keep, by minimum cuts (networkx).

For a given price per byte, the best choice is a minimum cut of this network: source → operation (its seconds; cut to
recompute it), operation → storage that it makes (price × bytes; cut to keep it), storage → operation that reads it and
saved storage → sink (never cut). To find points between two points of the hull, use the slope of their line as the
price: if the cut is below the line, it is a new point of the hull; if not, there is none between them (Eisner &
Severance 1976). All capacities are Python integers, so every comparison is exact.
"""

from typing import Any

from remat.errors import PlannerError
from remat.planners.graph.keep_choice import Choice, KeepQuestion

__all__ = ["hull"]


def hull(question: KeepQuestion, most: int = 64, at: int | None = None) -> list[Choice]:
    """About `most` choices on the lower hull of (bytes, seconds), those that keep most first.

    With `at`, the search goes on until the two choices on either side of `at` bytes are neighbours on the hull.
    """
    size = sum(question.graph.storages[s].bytes for s in question.storages) + 1
    # The fastest choice (of equals the smallest), and the smallest (of equals the fastest).
    fastest = _cheapest(question, size, 1)
    smallest = _cheapest(question, 1, sum(question.ticks.values()) + 1)
    points = [fastest] if (fastest.bytes, fastest.ticks) == (smallest.bytes, smallest.ticks) else [fastest, smallest]
    gaps = [(fastest, smallest)] if len(points) > 1 else []
    while gaps:
        around = [gap for gap in gaps if at is not None and gap[1].bytes <= at <= gap[0].bytes]
        if len(points) >= most and not around:
            break
        upper, lower = max(around or gaps, key=lambda gap: gap[0].bytes - gap[1].bytes)
        gaps.remove((upper, lower))
        per_tick, per_byte = upper.bytes - lower.bytes, lower.ticks - upper.ticks
        found = _cheapest(question, per_tick, per_byte)
        if per_tick * (found.ticks - upper.ticks) + per_byte * (found.bytes - upper.bytes) < 0:
            points.append(found)
            gaps += [(upper, found), (found, lower)]
    return sorted(points, key=lambda point: -point.bytes)


def _cheapest(question: KeepQuestion, per_tick: int, per_byte: int) -> Choice:
    """The choice that minimizes per_tick·ticks + per_byte·bytes."""
    networkx = _networkx()
    network = networkx.DiGraph()
    network.add_nodes_from(["source", "sink"])
    for operation in question.operations:
        again = operation in question.graph.run_again
        cost = {"capacity": per_tick * question.ticks[operation]} if again else {}  # without capacity: infinite
        network.add_edge("source", operation, **cost)
        for storage in question.inputs(operation) if again else ():
            network.add_edge(("storage", storage), operation)
    for storage in question.storages:
        price = per_byte * question.price(storage)
        network.add_edge(question.graph.maker[storage], ("storage", storage), capacity=price)
    for storage in question.graph.saved:
        network.add_edge(("storage", storage), "sink")
    _, (_, after) = networkx.minimum_cut(network, "source", "sink")
    return question.choice([operation for operation in question.operations if operation in after])


def _networkx() -> Any:
    try:
        import networkx
    except ImportError:
        raise PlannerError("choosing what a block keeps needs networkx: pip install networkx") from None
    return networkx
