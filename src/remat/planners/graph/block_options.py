"""The options of a block: for a number of tape sizes, what to keep so that making the rest again takes the least time.

In: the graph of one block. Out: options from the one that keeps most to the one that keeps least, each with its sizes
and times, which become the options of a stage in a chain. The lower hull is found by minimum cuts; the points between
by OR-Tools, where that is installed. Without it there are fewer options, and each is still the fastest for its size.
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

TINY = 1000  # storages below this fraction of what is saved are kept wherever that is of use


@dataclass(frozen=True)
class BlockOption:
    """One choice of what a block keeps between its forward and its backward.

    `kept` is storages, `remade` the operations that are run again in the backward, each once, when the backward first
    asks for something that needs them; `seconds` is their time. `tape_bytes` is what is held after the forward beyond
    the block's input, its outputs counted once. `record_peak` is the most bytes live in the forward beyond the input,
    `pullback_peak` the most in the backward: what is kept, what was made again, cotangents. `found` says how the choice
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

    Storages of at most `tiny` bytes (default: a thousandth of what is saved) are kept wherever they are of use.
    `exact=False` gives the points of the convex hull only; None adds those between where OR-Tools is installed, True
    raises without it.

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
        cp_model()  # raises where it is missing
    if exact or (exact is None and has_cp_sat()):
        choices |= dict.fromkeys(between(question, list(choices), points - len(choices)), "exact")
    ordered = sorted(choices, key=lambda choice: (-choice.bytes, choice.ticks))
    return tuple(block_option(graph, choice, choices[choice]) for choice in ordered)


def block_option(graph: Graph, choice: Choice, found: str = "given") -> BlockOption:
    """The option of a choice, its peaks found by simulating its schedule."""
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
    """The most bytes live in the forward, and in the backward with what it makes again."""
    forward = backward = ran = 0
    for event in simulate(with_frees(graph, runs), graph):
        ran += isinstance(event.op, Run)
        if ran <= graph.turn:
            forward = max(forward, event.live.total())
        else:
            backward = max(backward, event.live.total())
    return forward, backward
