"""The backward of a traced step: what each node of autograd ran, and how long its results were live.

Rule 1. One node is one operation, which holds all that it unpacks until it is done. Nodes that unpack nothing, such as
those that accumulate gradients, are part of the operation before, unless that would raise its peak: when they run, what
it unpacked is already free.

Rule 2. A storage that the backward makes is live until it is freed, which is observed: intermediate results of kernels
live until their node is done, gradients until the node that takes them has run.

Rule 3. Where two gradients meet, the engine adds them, in place if nobody else holds one of the two. Under a dispatch
mode, as here, it never adds in place: so a sum at which a summand is freed is counted as that summand.

What it can miss: how long Python holds the results of the forward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from remat.frameworks.torch.internals.dispatch import DispatchMode, Operator, current_node
from remat.frameworks.torch.lineage.block_trace import OperatorTrace
from remat.frameworks.torch.lineage.lineage import without_graph
from remat.frameworks.torch.lineage.operator_traits import tensors_among, traits_of
from remat.frameworks.torch.workspace_meter import WorkspaceMeter
from remat.problem.operation import Operation

__all__ = ["BackwardTrace", "WatchedTrace"]


class WatchedTrace(OperatorTrace):  # type: ignore[no-untyped-call]
    """Records when storages are freed."""

    def __init__(self, modules: dict[int, str], device: torch.device | None) -> None:
        super().__init__(modules, device)
        self.ends: dict[int, int] = {}
        self._watched: list[ReferenceType[Any]] = []

    def now(self) -> int:
        """The current time, as recorded for storages."""
        raise NotImplementedError

    def _number(self, tensor: Tensor, name: str) -> int:
        is_new = not self._is_known(tensor)
        number = super()._number(tensor, name)
        if is_new:
            self._watched.append(ref(tensor.untyped_storage(), lambda _: self._end(number)))
        return number

    def _end(self, number: int) -> None:
        self.ends[number] = self.now()


class _Saved:
    """A saved tensor, and its number; None if the loss saved it."""

    __slots__ = ("__weakref__", "number", "tensor")

    def __init__(self, tensor: Tensor, number: int | None) -> None:
        self.tensor, self.number = tensor, number


class _Run(NamedTuple):
    """A run of an operator in a backward: its time, the storages that it read and made, and its number."""

    time: int
    read: set[int]
    made: list[int]
    number: int
    summands: tuple[int, ...] = ()  # of a sum that the engine may make in place


@dataclass
class _Node:
    """A node of autograd, and what it has unpacked and run."""

    name: str
    unpacked: list[int] = field(default_factory=list)  # storages
    numbers: list[int] = field(default_factory=list)  # of saved tensors
    runs: list[_Run] = field(default_factory=list)
    seconds: float = 0.0
    is_released: bool = False  # whether its saved tensors are freed

    def add(self, run: _Run, seconds: float) -> None:
        """Record a run of an operator by this node."""
        self.runs.append(run)
        self.seconds += seconds

    @property
    def reads(self) -> set[int]:
        """Storages that it reads and did not make."""
        made = {storage for run in self.runs for storage in run.made}
        return {*self.unpacked, *(storage for run in self.runs for storage in run.read)} - made


class BackwardTrace(WatchedTrace):  # type: ignore[no-untyped-call]
    """Records the operators of a forward, and then of its backward."""

    def __init__(self, modules: dict[int, str], device: torch.device | None, meter: WorkspaceMeter) -> None:
        super().__init__(modules, device)
        self._meter = meter
        self._packs = self._ticks = 0
        self.released: dict[int, int] = {}  # storage → operations of the forward that had run when its graph was freed
        self._packed: list[tuple[ReferenceType[_Saved], int]] = []
        self._nodes: list[_Node] = []
        self._node: Any = None

    def now(self) -> int:
        """The number of operators that have begun in the backward."""
        return self._ticks

    def run(self, func: Operator, args: Any, kwargs: Any) -> tuple[Any, int]:
        """The result of an operator, and its number, under which the meter will know its workspace."""
        return self._meter.run(partial(func, *args, **kwargs))

    def backward(self) -> "_BackwardMode":
        """A mode that records the operators of the backward."""
        return _BackwardMode(self)

    def pack_numbered(self, tensor: Tensor) -> _Saved:
        """The object that the model's graph saves in place of a tensor."""
        self._packs += 1
        return self._pack(tensor, self._packs - 1)

    def pack_plain(self, tensor: Tensor) -> _Saved:
        """The object that the graph of a loss saves in place of a tensor."""
        return self._pack(tensor, None)

    def _pack(self, tensor: Tensor, number: int | None) -> _Saved:
        saved = _Saved(without_graph(tensor), number)
        if _is_strided(tensor) and self._is_known(tensor):
            storage = self._number(tensor, "")
            self._packed.append((ref(saved, lambda _: self._note_released(storage)), storage))
        return saved

    def _note_released(self, storage: int) -> None:
        if not self._nodes:  # still in the forward: what it computed was not used
            self.released[storage] = len(self._operations)

    def never_unpacked(self) -> Iterator[int]:
        """The storages that the graph still holds after the backward, saved by nodes that did not run."""
        return (storage for saved, storage in self._packed if saved() is not None)

    def unpack(self, saved: _Saved) -> Tensor:
        """Record that a node of the backward unpacks a saved tensor."""
        node = self._current()
        if saved.number is not None:
            node.numbers.append(saved.number)
        if _is_strided(saved.tensor) and self._is_known(saved.tensor):
            node.unpacked.append(self._number(saved.tensor, ""))
        self._watched.append(ref(saved, lambda _: setattr(node, "is_released", True)))
        return saved.tensor

    def _current(self) -> _Node:
        """The node that is running."""
        node = current_node()
        if node is not self._node or not self._nodes:
            self._node = node
            self._nodes.append(_Node("backward" if node is None else node.name()))
        return self._nodes[-1]

    def in_backward(self, func: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operator of the backward, and record it unless it is a view."""
        self._ticks += 1
        if traits_of(func).is_view:
            return func(*args, **kwargs)
        self._finish()
        time, began = self._ticks, perf_counter()
        out, number = self.run(func, args, kwargs)
        self._finish()
        node, seconds = self._current(), perf_counter() - began
        tensors = [each for each in (*tensors_among(args), *tensors_among(kwargs.values())) if _is_strided(each)]
        read = {self._number(each, "") for each in tensors}
        results = tensors_among(out if isinstance(out, list | tuple) else (out,))
        made = [self._number(each, "") for each in results if _is_strided(each) and not self._is_known(each)]
        is_sum = func is torch.ops.aten.add.Tensor and (node.is_released or not node.unpacked)
        summands = tuple(self._number(each, "") for each in tensors if is_sum and _is_dense(each))
        if node.is_released:  # the engine adds gradients after the node's saved tensors were freed
            node = _Node("sum of gradients")
            self._nodes.append(node)
        node.add(_Run(time, read, made, number, summands), seconds)
        return out

    def pullbacks(self, forward: set[int]) -> list[Operation]:
        """The operations of the backward; `forward` are the storages that the forward made."""
        nodes, lives = _with_sums_in_place(self._nodes, self.ends)
        nodes = list(self._joined(nodes, lives, forward))
        begins = [node.runs[0].time if node.runs else 0 for node in nodes]
        for at in reversed(range(len(nodes) - 1)):  # a node that runs nothing begins with the next
            begins[at] = begins[at] or begins[at + 1]
        return [
            self._operation(node, begins[at], begins[at + 1] if at + 1 < len(nodes) else None, lives)
            for at, node in enumerate(nodes)
        ]

    def _joined(self, nodes: Sequence[_Node], lives: "_LivesOf", forward: set[int]) -> Iterator[_Node]:
        """The nodes that unpack something or read results of the forward; others are joined to the one before."""
        before: _Node | None = None
        for node in nodes:
            if before is None:
                before = node
                continue
            both = replace(before, runs=before.runs + node.runs, seconds=before.seconds + node.seconds)
            alone = not node.numbers and not node.reads & forward
            if alone and self._most(both, lives) <= self._most(before, lives):
                before = both
            else:
                yield before
                before = node
        if before is not None:
            yield before

    def _most(self, node: _Node, lives: "_LivesOf") -> int:
        """The peak of a node's own results and workspace while it runs."""
        made = [storage for run in node.runs for storage in run.made]
        return max(
            (self._live(made, run.time, lives) + self._meter.workspace(run.number) for run in node.runs), default=0
        )

    def _live(self, storages: Sequence[int], time: int, lives: "_LivesOf") -> int:
        return sum(self._storages[each].bytes for each in storages if lives[each][0] <= time <= lives[each][1])

    def _operation(self, node: _Node, begin: int, end: int | None, lives: "_LivesOf") -> Operation:
        made = {storage for run in node.runs for storage in run.made}
        outputs = {storage for storage in made if end is not None and lives[storage][1] >= end}
        held = {storage for storage, (born, last) in lives.items() if born < begin <= last}
        size = sum(self._storages[storage].bytes for storage in outputs)
        return Operation(
            node.name,
            node.seconds,
            sorted(node.reads - lives.keys() | held),
            sorted(outputs),
            backward=True,
            workspace=max(0, self._most(node, lives) - size),
            unpacks=node.numbers,
        )


_LivesOf = dict[int, tuple[int, int]]  # the first and last time of each storage that a backward made


class _BackwardMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Passes the operators of a backward to the trace of its step."""

    def __init__(self, step: BackwardTrace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._step = step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record it."""
        return self._step.in_backward(func, args, kwargs or {})


def _with_sums_in_place(nodes: Sequence[_Node], ends: dict[int, int]) -> tuple[list[_Node], _LivesOf]:
    """The nodes, with each sum replaced by the summand that was freed at it, and the lives of their results."""
    same: dict[int, int] = {}
    lives: _LivesOf = {}
    found: list[_Node] = []
    for node in nodes:
        runs = []
        for run in node.runs:
            into = next((each for each in run.summands if ends.get(each) == run.time and run.made), None)
            if into is not None:
                same[run.made[0]] = same.get(into, into)
            made = [each for each in run.made if each not in same]
            runs.append(run._replace(read={same.get(each, each) for each in run.read}, made=made))
            for each in run.made:
                first = lives[same[each]][0] if same.get(each) in lives else run.time
                lives[same.get(each, each)] = first, ends.get(each, _NEVER)
        found.append(replace(node, runs=runs))
    return found, lives


_NEVER = 2**62


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is dense and does not overlap itself, which the engine checks before it adds in place."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
