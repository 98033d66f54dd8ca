"""What to keep between forward and backward, as an optimization problem for the solvers of graphs.

Each saved storage is kept, or its operation is recomputed, whose own inputs must then be kept or recomputed:

    minimize  Σ seconds·run + price·Σ bytes·keep
    keep_s or run_maker(s)                    for every saved storage s
    keep_s or run_maker(s) or not run_i       for every input s of every operation i

A choice is the set of recomputed operations; what is kept follows from it. Seconds are counted in whole ticks, so that
solvers work with integers.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from remat.problem import Graph

__all__ = ["Choice", "KeepQuestion"]

TICKS = 2**32  # the total time of all operations of a question, in ticks


@dataclass(frozen=True)
class Choice:
    """The operations to recompute, the storages kept for them and for the backward, and the costs of both."""

    remade: frozenset[int]
    kept: frozenset[int]
    bytes: int  # of kept storages, without those that are free to keep
    ticks: int


@dataclass(frozen=True)
class KeepQuestion:
    """The question for one graph; storages in `free` cost nothing to keep."""

    graph: Graph
    free: frozenset[int]

    @classmethod
    def of(cls, graph: Graph, tiny: int = 0) -> "KeepQuestion":
        """The question for a graph, whose outputs and storages of at most `tiny` bytes cost nothing to keep."""
        small = {s for s in graph.maker if graph.storages[s].bytes <= tiny}
        return cls(graph, frozenset(small | set(graph.outputs)))

    @cached_property
    def operations(self) -> tuple[int, ...]:
        """The operations that a recomputation can involve, in order: those that saved storages depend on."""
        graph, found = self.graph, set[int]()
        stack = [graph.maker[s] for s in graph.saved]
        while stack:
            operation = stack.pop()
            if operation not in found:
                found.add(operation)
                if operation in graph.run_again:
                    stack += [graph.maker[s] for s in self.inputs(operation)]
        return tuple(sorted(found))

    @cached_property
    def ticks(self) -> dict[int, int]:
        """The time of each operation in ticks; at least one, unless its time is 0."""
        times = {i: self.graph.operations[i].seconds for i in self.operations}
        total = sum(times.values()) or 1.0
        return {i: max(round(seconds / total * TICKS), int(seconds > 0)) for i, seconds in times.items()}

    @cached_property
    def storages(self) -> tuple[int, ...]:
        """The storages that may be kept: those that these operations make and something uses."""
        used = {*self.graph.saved, *(s for i in self.operations for s in self.inputs(i))}
        return tuple(s for s in sorted(used) if self.graph.maker[s] in self.ticks)

    def inputs(self, operation: int) -> Iterator[int]:
        """The inputs of an operation that other operations make."""
        return (s for s in self.graph.operations[operation].inputs if s in self.graph.maker)

    def price(self, storage: int) -> int:
        """Bytes that keeping a storage costs."""
        return 0 if storage in self.free else self.graph.storages[storage].bytes

    def choice(self, remade: Collection[int]) -> Choice:
        """The choice that recomputes these operations, without useless ones, and keeps what is then needed."""
        graph, again = self.graph, self._useful(frozenset(remade))
        needed = {*graph.saved, *(s for i in again for s in self.inputs(i))}
        kept = frozenset(s for s in needed if graph.maker[s] not in again)
        return Choice(again, kept, sum(map(self.price, kept)), sum(self.ticks[i] for i in again))

    def _useful(self, remade: frozenset[int]) -> frozenset[int]:
        """The useful ones of these operations: they make something that is saved, or that a useful one reads."""
        wanted = set(self.graph.saved)
        used = set[int]()
        for i in sorted(remade, reverse=True):  # users come after makers
            if wanted.intersection(self.graph.operations[i].outputs):
                used.add(i)
                wanted.update(self.inputs(i))
        return frozenset(used)
