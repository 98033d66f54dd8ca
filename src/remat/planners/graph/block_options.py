"""The options of a block: for a number of tape sizes, what to keep so that making the rest again takes the least time.

In: the graph of one block. Out: options from the one that keeps most to the one that keeps least, each with its sizes
and times, which become the options of a stage in a chain.
"""

from dataclasses import dataclass

from remat.problem import Graph

__all__ = ["BlockOption", "block_options"]


@dataclass(frozen=True)
class BlockOption:
    """One choice of what a block keeps between its forward and its backward.

    `kept` is storages, `remade` the operations that are run again in the backward, each once, when the backward first
    asks for something that needs them; `seconds` is their time. `tape_bytes` is what is held after the forward beyond
    the block's input, its outputs counted once. `record_peak` is the most bytes live in the forward beyond the input,
    `pullback_peak` the most in the backward: what is kept, what was made again, cotangents. `found` says how the choice
    was found: "hull" (fastest for its size, and on the convex hull of all choices), "exact" (fastest for its size).
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
    """
    raise NotImplementedError
