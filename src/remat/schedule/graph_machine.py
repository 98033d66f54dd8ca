"""What is live while a graph runs: each storage counts once, from when it is made until it is freed.

While an operation runs, everything live counts, plus its outputs and its workspace. An operation that is recomputed for
one of its outputs makes the others too: if one of them is still live, both copies count while it runs, and the new one
is freed. Each live storage has a version, the number of writes into it, so that the rules can find an operation that
would read other contents than the first time.
"""

from remat.ops import Free, Run
from remat.problem import Graph, Memory
from remat.schedule.live import Live, LiveItem
from remat.schedule.machine import Machine

__all__ = ["GraphMachine"]


class GraphMachine(Machine):
    """The machine for graphs: which storages are live, in which version, and which operations have run."""

    problem: Graph

    def __init__(self, problem: Graph, memory: Memory | None = None) -> None:
        super().__init__(problem, memory)
        self.next = 0  # the first operation that has not run yet
        self.versions: dict[int, int] = dict.fromkeys(problem.given, 0)  # live storage → version
        self._forward = self._backward = 0  # bytes of live storages made by the forward, and by the backward
        self._extra = 0  # bytes of the last op's workspace and of second copies that it made
        self._last: int | None = None  # the operation that the last op ran

    @property
    def state_size(self) -> int:
        """Bytes of storages made by the forward, while the last op ran."""
        return self._forward

    def _run_operation(self, op: Run) -> None:
        each, turn = self.problem.operations[op.operation], self.problem.turn
        self._extra = each.workspace
        for storage in each.outputs:
            if storage in self.versions:
                self._extra += self.problem.storages[storage].bytes
            else:
                self._count(storage, 1)
                self.versions[storage] = 0
        for storage in each.writes:
            self.versions[storage] += 1
        self.next = max(self.next, op.operation + 1)
        self._last = op.operation
        backward = op.operation >= turn
        self.running_size = 0 if backward else self._extra
        self.pulling_size = self._backward + (self._extra if backward else 0)

    def _free_storage(self, op: Free) -> None:
        del self.versions[op.storage]
        self._count(op.storage, -1)
        self._extra, self._last = 0, None
        self.running_size, self.pulling_size = 0, self._backward

    def _count(self, storage: int, sign: int) -> None:
        size = sign * self.problem.storages[storage].bytes
        if self.problem.maker[storage] < self.problem.turn:
            self._forward += size
        else:
            self._backward += size

    @property
    def stored(self) -> list[int]:
        """The live storages that were made by operations."""
        return [storage for storage in self.versions if storage in self.problem.maker]

    def holders(self) -> list[LiveItem]:
        """Everything live as (what, level, bytes)."""
        items: list[LiveItem] = [
            (f"storage {s}{self._storage_named(s)}", self.device, self.problem.storages[s].bytes) for s in self.stored
        ]
        if self._extra and self._last is not None:
            name = self.problem.operations[self._last].name
            items.append((f"workspace of operation {self._last}{f' ({name})' * bool(name)}", self.device, self._extra))
        return items

    def live(self) -> Live:
        """Bytes while the last op ran: storages of the forward count as states, of the backward as cotangents."""
        return Live(self.device, {self.device: self.state_size + self.running_size}, 0, self.pulling_size)

    def describe(self) -> str:
        """What is live now, as text for error messages."""
        stored = self.stored
        shown = ", ".join(f"{s}{self._storage_named(s)}" for s in stored[:8])
        more = f" and {len(stored) - 8} more" if len(stored) > 8 else ""
        return f"{self.next} of {self.units} operations have run, storages {shown or 'none'}{more}"

    def _storage_named(self, storage: int) -> str:
        name = self.problem.storage_name(storage)
        return f" ({name})" if name else ""
