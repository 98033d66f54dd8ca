"""The options of a block: for several tape sizes, what to keep so that recomputing the rest takes the least time.

From the graph of one block come options, from the one that keeps most to the one that keeps least, with their sizes and
times; they become the options of a stage in a chain. Minimum cuts find the lower hull, and OR-Tools, if installed, the
points between. Without OR-Tools there are fewer options, but each is still the fastest for its size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from remat.planners.graph.exact_choice import between, cp_model, has_cp_sat
from remat.planners.graph.keep_choice import Choice, KeepQuestion
from remat.planners.graph.min_cut import hull
from remat.planners.graph.run_order import just_in_time, with_frees
from remat.problem import Graph
from remat.schedule import Run, simulate

__all__ = ["BlockOption", "block_option", "block_options"]

TINY = 1000  # storages of at most 1/TINY of the saved bytes are kept wherever that is useful


@dataclass(frozen=True)
class BlockOption:
    """One choice of what a block keeps between its forward and its backward.

    `kept` are storages. `remade` are the operations that the backward recomputes, each once, when something that needs
    them is first used; `seconds` is their time. `tape_bytes` is what is held after the forward besides the block's
    input, with its outputs counted once. `record_peak` is the most bytes live in the forward besides the input,
    `pullback_peak` the most in the backward: kept and recomputed storages and cotangents. `found` says how the choice
    was found: "hull" (fastest for its size, and on the convex hull of all choices), "exact" (fastest for its size) or
    "given".
    """

    kept: frozenset[int]
    remade: frozenset[int]
    tape_bytes: int
    seconds: float
    record_peak: int
    pullback_peak: int
    found: str


def block_options(
    graph: Graph, *, points: int = 12, tiny: int | None = None, exact: bool | None = None
) -> tuple[BlockOption, ...]:
    """The fastest options of a block for up to `points` tape sizes, those that keep most first.

    Storages of at most `tiny` bytes (default: a thousandth of the saved bytes) are kept wherever that is useful.
    `exact=False` gives only the points of the convex hull; None adds points between them if OR-Tools is installed; True
    raises if it is not.

    >>> from remat.problem import Operation, Storage
    >>> norm = Operation("norm", 1.0, [0], [1])
    >>> matmul = Operation("matmul", 8.0, [1], [2])
    >>> gelu = Operation("gelu", 2.0, [2], [3])
    >>> back = Operation("pullbacks", 9.0, [0, 1, 2, 3], [4], backward=True)
    >>> block = Graph([norm, matmul, gelu, back], [Storage(8)] * 5, results=[4])
    >>> [(sorted(option.kept), option.seconds) for option in block_options(block, exact=False)]
    [([1, 2, 3], 0.0), ([2, 3], 1.0), ([2], 3.0), ([], 11.0)]
    """
    small = graph.bytes_of(graph.saved) // TINY if tiny is None else tiny
    question = KeepQuestion.of(graph, small)
    choices = dict.fromkeys(hull(question, points), "hull")
    if exact:
        cp_model()  # raises if it is missing
    if exact or (exact is None and has_cp_sat()):
        choices |= dict.fromkeys(between(question, list(choices), points - len(choices)), "exact")
    ordered = sorted(choices, key=lambda choice: (-choice.bytes, choice.ticks))
    return tuple(block_option(graph, choice, choices[choice]) for choice in ordered)


def block_option(graph: Graph, choice: Choice, found: str = "given") -> BlockOption:
    """The option for a choice; its peaks come from simulating its schedule."""
    forward, backward = peaks(graph, just_in_time(graph, choice.kept))
    return BlockOption(
        choice.kept,
        choice.remade,
        graph.bytes_of({*choice.kept, *graph.outputs}),
        float(sum(graph.operations[i].seconds for i in choice.remade)),
        forward,
        backward,
        found,
    )


def peaks(graph: Graph, runs: Sequence[int]) -> tuple[int, int]:
    """The most bytes live in the forward, and in the backward including what it recomputes."""
    forward = backward = ran = 0
    for event in simulate(with_frees(graph, runs), graph):
        ran += isinstance(event.op, Run)
        if ran <= graph.turn:
            forward = max(forward, event.live.total())
        else:
            backward = max(backward, event.live.total())
    return forward, backward
