"""A graph: operations in the order in which they ran, forward then backward, and the storages between them.

It has two uses: the graph of *one block*, from which the block's options are found, and the *joint graph* of a whole
training step, which is planned directly. Tensors are resolved to storages: all views of a storage are that storage, and
an operation that makes several storages (a norm and its statistics) has several outputs.

A storage that an operation makes counts in bytes from when it is made until it is freed. A storage that no operation
makes (parameters, the batch, a block's input) is always there and does not count. The backward of a block's graph
starts with an operation that makes the cotangent of the block's output, so that it counts from there on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

from remat.errors import ProblemError
from remat.problem.operation import Operation, Storage
from remat.problem.serialization import Serializable
from remat.units import bytes_text, count_text, seconds_text, to_count

__all__ = ["Graph"]

MOST_ROWS = 60  # operations to print at most


@dataclass(frozen=True, init=False)
class Graph(Serializable):
    """Operations in order, and their storages; `results` are the storages that outlive the graph.

    A result that the forward makes (the output of a block, a loss) is live until the backward starts; a result that the
    backward makes (a gradient) is live at the end.

    >>> a, b = Operation("double", 1.0, [0], [1]), Operation("square", 1.0, [1], [2])
    >>> back = Operation("square's pullback", 2.0, [1, 3], [4], backward=True)
    >>> start = Operation("cotangent", 0.0, [], [3], backward=True)
    >>> graph = Graph([a, b, start, back], [Storage(8)] * 5, results=[2, 4])
    >>> graph.turn, graph.saved, graph.given, graph.outputs
    (2, (1,), (0,), (2,))
    """

    operations: tuple[Operation, ...]
    storages: tuple[Storage, ...]
    results: tuple[int, ...]
    _seconds: tuple[float, ...] = field(repr=False, compare=False)

    kind: ClassVar[str] = "graph"
    unit: ClassVar[str] = "operation"
    restartable: ClassVar[bool] = False

    def __init__(
        self, operations: Iterable[Operation], storages: Iterable[Storage], results: Iterable[int] = ()
    ) -> None:
        put = object.__setattr__
        put(self, "operations", tuple(operations))
        put(self, "storages", tuple(storages))
        put(self, "results", tuple(dict.fromkeys(to_count(result, "a result") for result in results)))
        for position, storage in enumerate(self.storages):
            if not isinstance(storage, Storage):
                raise ProblemError(f"storage {position} must be a Storage, not {type(storage).__name__}")
        _check_order(self.operations, len(self.storages), self.results)
        put(self, "_seconds", tuple(accumulate((each.seconds for each in self.operations), initial=0.0)))

    @cached_property
    def turn(self) -> int:
        """The position of the first backward operation, or the number of operations if there is none."""
        return next((i for i, each in enumerate(self.operations) if each.backward), len(self.operations))

    @cached_property
    def maker(self) -> dict[int, int]:
        """The operation that makes each storage, for the storages that are not given."""
        return {storage: i for i, each in enumerate(self.operations) for storage in each.outputs}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each storage."""
        return tuple(storage.bytes for storage in self.storages)

    @cached_property
    def made_reads(self) -> tuple[tuple[int, ...], ...]:
        """For each operation, the storages it reads that an operation makes."""
        return tuple(tuple(s for s in each.reads if s in self.maker) for each in self.operations)

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """For each storage, the operations that read it or write into it, in order."""
        found: dict[int, list[int]] = {storage: [] for storage in range(len(self.storages))}
        for i, each in enumerate(self.operations):
            for storage in each.reads:
                found[storage].append(i)
        return {storage: tuple(operations) for storage, operations in found.items()}

    @cached_property
    def given(self) -> tuple[int, ...]:
        """The storages that no operation makes: they are always there and do not count."""
        return tuple(storage for storage in range(len(self.storages)) if storage not in self.maker)

    @cached_property
    def saved(self) -> tuple[int, ...]:
        """The storages that the forward makes and the backward uses: what a framework saves."""
        return tuple(s for s, i in self.maker.items() if i < self.turn and any(u >= self.turn for u in self.users[s]))

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The results that the forward makes: the output of a block, the loss of a step."""
        return tuple(storage for storage in self.results if self.maker.get(storage, self.turn) < self.turn)

    @cached_property
    def run_again(self) -> frozenset[int]:
        """The forward operations that can be recomputed and then give the same result.

        Excluded are operations that are not repeatable, that write into a storage, or whose inputs or outputs are
        written into later: a second run would make or read something else.
        """
        last_write = {storage: operations[-1] for storage, operations in self._writers.items()}
        return frozenset(
            i
            for i, each in enumerate(self.operations[: self.turn])
            if each.repeatable
            and not each.writes
            and not any(last_write.get(s, -1) > i for s in (*each.inputs, *each.outputs))
        )

    @cached_property
    def pauses(self) -> tuple[int, ...]:
        """The backward operations before which the forward's may be recomputed, in order.

        Of a traced step these are the operations that unpack saved tensors, since only there the backward asks for
        them; of other graphs, all.
        """
        backward = range(self.turn, self.units)
        return tuple(i for i in backward if self.operations[i].unpacks) or tuple(backward)

    def pause_before(self, operation: int) -> int:
        """The last of the `pauses` up to a backward operation; -1 if there is none."""
        place = bisect_right(self.pauses, operation)
        return self.pauses[place - 1] if place else -1

    @cached_property
    def _writers(self) -> dict[int, tuple[int, ...]]:
        """For each storage that is written into, the operations that write into it, in order."""
        found: dict[int, list[int]] = {}
        for i, each in enumerate(self.operations):
            for storage in each.writes:
                found.setdefault(storage, []).append(i)
        return {storage: tuple(operations) for storage, operations in found.items()}

    def version_at(self, operation: int, storage: int) -> int:
        """How many writes into the storage precede the first run of the operation."""
        return bisect_left(self._writers.get(storage, ()), operation)

    @cached_property
    def last_use(self) -> dict[int, int]:
        """For each storage that is made, the last operation during which it is live if nothing is recomputed."""
        last = {storage: max((maker, *self.users[storage])) for storage, maker in self.maker.items()}
        for storage in self.results:
            if storage in last:
                forward = self.maker[storage] < self.turn
                last[storage] = max(last[storage], self.turn - 1) if forward else self.units
        return last

    @cached_property
    def plain_live(self) -> tuple[int, ...]:
        """Bytes live before each operation, and after the last, if nothing is recomputed."""
        change = [0] * (self.units + 2)
        for storage, last in self.last_use.items():
            change[self.maker[storage] + 1] += self.storages[storage].bytes
            change[min(last, self.units) + 1] -= self.storages[storage].bytes
        return tuple(accumulate(change))[: self.units + 1]

    @cached_property
    def plain_peak(self) -> int:
        """The most bytes live if nothing is recomputed."""
        return self.running_size(0, self.units, record=True)

    def running_bytes(self, operation: int) -> int:
        """Bytes that an operation adds while it runs: its outputs and its workspace."""
        return self.bytes_of(self.operations[operation].outputs) + self.operations[operation].workspace

    def bytes_of(self, storages: Iterable[int]) -> int:
        """The total bytes of these storages."""
        return sum(self.storages[storage].bytes for storage in storages)

    def storage_name(self, storage: int) -> str:
        """The name of a storage, or of the operation that makes it."""
        name, maker = self.storages[storage].name, self.maker.get(storage)
        return name or ("" if maker is None else self.operations[maker].name)

    def __str__(self) -> str:
        """A table with a row per operation."""
        head = "{:<34}{:>10}{:>13}  {}".format("operation", "time", "made", "reads")
        shown = list(self._rows(self.operations[:MOST_ROWS]))
        if len(self.operations) > MOST_ROWS:
            shown.append(f"and {count_text(len(self.operations) - MOST_ROWS)} more")
        return "\n".join([f"graph of {self.title}", head, *shown])

    def _rows(self, operations: Sequence[Operation]) -> Iterator[str]:
        for each in operations:
            name, made = each.where + (" <-" if each.backward else ""), bytes_text(self.bytes_of(each.outputs))
            yield f"{name:<34.34}{each.seconds:>10.3g}{made:>13}  {' '.join(map(str, each.reads))}"

    @property
    def units(self) -> int:
        """The number of operations."""
        return len(self.operations)

    @property
    def timed(self) -> bool:
        """True: the operations of a graph always have times, in seconds."""
        return True

    @property
    def title(self) -> str:
        """The number of operations as text."""
        return f"{count_text(self.units)} operations"

    def describe(self, *, times: bool = False) -> list[tuple[str, str]]:
        """Rows about its storages and, with `times`, its times."""
        made = bytes_text(self.bytes_of(self.maker))
        rows = [("storages", f"{made} in {count_text(len(self.maker))}, {bytes_text(self.bytes_of(self.saved))} saved")]
        if times:
            forward, backward = self._seconds[self.turn], self._seconds[-1] - self._seconds[self.turn]
            rows.append(("all times", f"forward {seconds_text(forward)}, backward {seconds_text(backward)}"))
        return rows

    def shrink_advice(self) -> str:
        """What to make smaller so that the graph fits less memory."""
        largest = max(self.maker, key=lambda storage: self.storages[storage].bytes, default=None)
        if largest is None:
            return "make its operations smaller"
        name = self.operations[self.maker[largest]].where
        return f"make its largest storage ({bytes_text(self.storages[largest].bytes)}, of {name}) smaller"

    def unit_name(self, unit: int) -> str:
        """The name of the operation, or an empty string."""
        return self.operations[unit].name if unit < self.units else ""

    def state_size(self, state: int) -> int:
        """Bytes live between operations state-1 and state if nothing is recomputed."""
        return self.plain_live[state]

    def tape_size(self, start: int, stop: int, option: int = 0) -> int:
        """0: what the backward needs are ordinary storages."""
        return 0

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """The most bytes live while these operations run if nothing is recomputed."""
        made = (self.plain_live[i] + self.running_bytes(i) for i in range(start, stop))
        return max(made, default=0)

    def pulling_size(self, start: int, stop: int) -> int:
        """0: cotangents are ordinary storages."""
        return 0

    def advance_time(self, start: int, stop: int) -> float:
        """Time to run operations start..stop-1."""
        return self._seconds[stop] - self._seconds[start]

    def record_time(self, start: int, stop: int, option: int = 0) -> float:
        """Time to run operations start..stop-1."""
        return self.advance_time(start, stop)

    def pullback_time(self, start: int, stop: int, option: int = 0) -> float:
        """0: backward operations are ordinary operations."""
        return 0.0

    def with_times(self, factor: float) -> "Graph":
        """The graph with all times multiplied by `factor`."""
        operations = [replace(each, seconds=factor * each.seconds) for each in self.operations]
        return Graph(operations, self.storages, self.results)

    def to_dict(self) -> dict[str, Any]:
        """The graph as plain data."""
        return {
            "operations": [each.to_dict() for each in self.operations],
            "storages": [each.to_dict() for each in self.storages],
            "results": list(self.results),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Graph":
        """The graph from plain data."""
        operations = [Operation(**each) for each in data["operations"]]
        return cls(operations, [Storage(**each) for each in data["storages"]], data["results"])


def _check_order(operations: Sequence[Operation], storages: int, results: Iterable[int]) -> None:
    """Raise a ProblemError unless each storage is made once, before it is read, and the backward comes last."""
    makers: dict[int, int] = {}
    read: set[int] = set()
    turned = False
    for position, each in enumerate(operations):
        if not isinstance(each, Operation):
            raise ProblemError(f"operation {position} must be an Operation, not {type(each).__name__}")
        if turned and not each.backward:
            raise ProblemError(f"operation {position}, {each.where}, is a forward one after backward ones")
        turned = each.backward
        for storage in (*each.reads, *each.outputs):
            if storage >= storages:
                raise ProblemError(f"operation {position}, {each.where}, uses storage {storage} of {storages}")
        read.update(each.reads)
        for storage in each.outputs:
            if storage in makers:
                raise ProblemError(
                    f"operations {makers[storage]} and {position} both make storage {storage}; what is made once "
                    "and written later belongs in writes"
                )
            if storage in read:
                raise ProblemError(f"storage {storage} is read before operation {position}, {each.where}, makes it")
            makers[storage] = position
    for storage in results:
        if storage >= storages:
            raise ProblemError(f"the result {storage} is none of the {storages} storages")
