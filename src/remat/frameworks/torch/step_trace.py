"""The joint graph of one training step: the model's operators, those of the loss, and the backward, as they ran once.

Rule. The forward is traced as a block is (block_trace.py). In the backward, what one node of autograd runs is one
operation: it has all that it unpacks until it is done. Nodes that unpack nothing, as those that add to gradients, are
part of the operation before. `unpacks` of an operation are the saved tensors that it asks for, in the order in which
the model's forward saved them: by these numbers a run knows where it is (planned_lineage.py). What the model returns is
held by the caller until the backward has ended, and neither it nor what the loss computes is made again.

Bytes that kernels take beside their results are measured where the allocator tells them, and count while they run.

Python holds tensors after their last use, in local variables of a forward: how long is seen in a forward of which
autograd saves nothing. Operations that do nothing read them at these places, so that they are live until then.

What it can miss: what Python holds in a backward. So a plan that is made from it is tried before it is used
(plan_trials.py).

The cost: one forward, one step, and some ten runs of each distinct operator; memory as that of a step that keeps
everything.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from remat.frameworks.torch.autocast import forget_casts
from remat.frameworks.torch.block_trace import OperatorTrace
from remat.frameworks.torch.dispatch import Operator, current_node
from remat.frameworks.torch.lineage import without_graph
from remat.frameworks.torch.meter import cuda_of
from remat.frameworks.torch.model_trial import Loss, Trial, loss_of
from remat.frameworks.torch.operator_traits import tensors_among, traits_of
from remat.frameworks.torch.workspace_meter import WorkspaceMeter
from remat.measuring.merged_writes import merged_writes
from remat.problem import Graph
from remat.problem.operation import Operation
from remat.pytree import flatten

__all__ = ["trace_step"]


def trace_step(model: nn.Module, run: Callable[[], Any], loss: Loss | None, devices: Sequence[torch.device]) -> Graph:
    """The graph of a step of a model that `run` calls; nothing is left of it."""
    names = {id(module): name for name, module in model.named_modules()}
    meter = WorkspaceMeter(devices)
    with Trial(model, devices).gradients_there(), meter.counting():
        trace = _StepTrace(names, cuda_of(devices), meter, _holds(run, names, cuda_of(devices)))
        with saved_tensors_hooks(trace.pack_numbered, trace.unpack), trace:
            out = run()
        trace.end_model(leaf for leaf in flatten(out)[0] if isinstance(leaf, Tensor))
        with saved_tensors_hooks(trace.pack_plain, trace.unpack), trace:
            value = loss_of(out, loss)
        if value is not None:
            with trace.backward():
                torch.autograd.backward(value)
    return trace.joint_graph()


class _Lives(OperatorTrace):  # type: ignore[no-untyped-call]
    """Notes when storages are let go that a forward makes: after how many operations."""

    def __init__(self, modules: dict[int, str], device: torch.device | None) -> None:
        super().__init__(modules, device)
        self.ends: dict[int, int] = {}
        self._watched: list[ReferenceType[Any]] = []

    def _number(self, tensor: Tensor, name: str) -> int:
        is_new = not self._is_known(tensor)
        number = super()._number(tensor, name)
        if is_new:
            self._watched.append(ref(tensor.untyped_storage(), lambda _: self._end(number)))
        return number

    def _end(self, number: int) -> None:
        self.ends[number] = len(self._operations)

    def holds(self) -> "_Holds":
        """The storages that are live after operations that are not the last to use them."""
        last = {storage: at for at, each in enumerate(self._operations) for storage in (*each.reads, *each.outputs)}
        made = {storage for each in self._operations for storage in each.outputs}
        found: dict[int, list[int]] = {}
        for storage in sorted(made):
            end = self.ends.get(storage, len(self._operations))
            if end > last[storage] + 1:
                found.setdefault(end - 1, []).append(storage)
        return _Holds([each.name for each in self._operations], found)


class _Holds(NamedTuple):
    """For operations of a forward, by position: storages that are held until after them."""

    operations: list[str]
    storages: dict[int, list[int]]


class _NothingIsSavedError(Exception):
    """A forward differentiates inside, so it cannot run with nothing saved."""


def _holds(run: Callable[[], Any], names: dict[int, str], device: torch.device | None) -> _Holds:
    lives = _Lives(names, device)
    forget_casts()
    try:
        with saved_tensors_hooks(lambda _: None, _not_saved), lives:
            out = run()
    except _NothingIsSavedError:
        return _Holds([], {})
    finally:
        forget_casts()
    holds = lives.holds()
    del out
    return holds


def _not_saved(_: object) -> Tensor:
    raise _NothingIsSavedError


class _Saved(NamedTuple):
    """A saved tensor, and its number; none if the loss saved it."""

    tensor: Tensor
    number: int | None


@dataclass
class _Node:
    """What a node of autograd has run: the storages that each operator read and made, and its number."""

    name: str
    unpacked: list[int] = field(default_factory=list)  # storages
    numbers: list[int] = field(default_factory=list)  # of saved tensors
    runs: list[tuple[set[int], list[int], int]] = field(default_factory=list)
    seconds: float = 0.0

    def add_run(self, read: set[int], made: list[int], number: int, seconds: float) -> None:
        """Note an operator that has run."""
        self.runs.append((read, made, number))
        self.seconds += seconds

    @property
    def reads(self) -> set[int]:
        """Storages that it reads and did not make."""
        made = {storage for _, each, _ in self.runs for storage in each}
        return {*self.unpacked, *(storage for read, _, _ in self.runs for storage in read)} - made


class _StepTrace(OperatorTrace):  # type: ignore[no-untyped-call]
    """Notes the operators of a whole step."""

    def __init__(
        self, modules: dict[int, str], device: torch.device | None, meter: WorkspaceMeter, holds: _Holds
    ) -> None:
        super().__init__(modules, device)
        self._meter, self._holds = meter, holds
        self._packs = 0
        self._of_model = 0  # operations
        self._outputs: list[int] = []
        self._nodes: list[_Node] = []
        self._node: Any = None

    def run(self, func: Operator, args: Any, kwargs: Any) -> tuple[Any, int]:
        """The result of an operator, and its number, by which its work space is going to be known."""
        return self._meter.run(partial(func, *args, **kwargs))

    def end_model(self, outputs: Iterable[Tensor]) -> None:
        """The model has returned these tensors."""
        self._of_model = len(self._operations)
        self._outputs = [self._number(each, "") for each in outputs if each.layout is torch.strided]

    def backward(self) -> "_BackwardTrace":
        """A mode that notes the operators of the backward."""
        return _BackwardTrace(self)

    def pack_numbered(self, tensor: Tensor) -> _Saved:
        """What the model's graph saves for a tensor."""
        self._packs += 1
        return _Saved(without_graph(tensor), self._packs - 1)

    def pack_plain(self, tensor: Tensor) -> _Saved:
        """What the graph of a loss saves for a tensor."""
        return _Saved(without_graph(tensor), None)

    def unpack(self, saved: _Saved) -> Tensor:
        """Note that a node of the backward asks for a saved tensor."""
        node = self._current()
        if saved.number is not None:
            node.numbers.append(saved.number)
        if saved.tensor.layout is torch.strided and self._is_known(saved.tensor):
            node.unpacked.append(self._number(saved.tensor, ""))
        return saved.tensor

    def _current(self) -> _Node:
        """The node that runs now."""
        node = current_node()
        if node is not self._node or not self._nodes:
            self._node = node
            self._nodes.append(_Node("backward" if node is None else node.name()))
        return self._nodes[-1]

    def in_backward(self, func: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operator of the backward, and note it."""
        self._finish()
        began = perf_counter()
        out, number = self.run(func, args, kwargs)
        self._finish()
        node, seconds = self._current(), perf_counter() - began
        tensors = [*tensors_among(args), *tensors_among(kwargs.values())]
        read = {self._number(each, "") for each in tensors if each.layout is torch.strided}
        results = tensors_among(out if isinstance(out, list | tuple) else (out,))
        made = [self._number(each, "") for each in results if each.layout is torch.strided and not self._is_known(each)]
        node.add_run(read, made, number, seconds)
        return out

    def joint_graph(self) -> Graph:
        """The graph of the step."""
        once = set(self._outputs)
        forward = [
            replace(
                each,
                repeatable=each.repeatable and at < self._of_model and not once & {*each.outputs, *each.writes},
                workspace=self._meter.workspace(each.workspace),
            )
            for at, each in enumerate(self._operations)
        ]
        made = {storage for each in forward for storage in each.outputs}
        operations = merged_writes(self._with_holds(forward))
        nodes = _joined(self._nodes, made)
        backward = [self._operation(node, nodes[at + 1 :]) for at, node in enumerate(nodes)]
        if backward:  # the caller holds what the model returned until then
            backward[-1] = replace(backward[-1], inputs=(*backward[-1].inputs, *self._outputs))
        return Graph([*operations, *backward], self._storages, [each for each in self._outputs if each in made])

    def _with_holds(self, forward: Sequence[Operation]) -> list[Operation]:
        """The operations, with others that read what is held; none if the forward went another way meanwhile."""
        if [each.name for each in self._operations[: self._of_model]] != self._holds.operations:
            return list(forward)
        found: list[Operation] = []
        for at, each in enumerate(forward):
            found.append(each)
            if at in self._holds.storages:
                found.append(Operation("held", 0.0, self._holds.storages[at], repeatable=False))
        return found

    def _operation(self, node: _Node, later: Sequence[_Node]) -> Operation:
        wanted = {storage for each in later for storage in each.reads}
        made = {storage for _, each, _ in node.runs for storage in each}
        outputs = made & wanted
        last = {storage: at for at, (read, new, _) in enumerate(node.runs) for storage in (*read, *new)}
        most = live = 0
        for at, (read, new, number) in enumerate(node.runs):
            live += sum(self._storages[storage].bytes for storage in new)
            most = max(most, live + self._meter.workspace(number))
            over = {storage for storage in {*read, *new} if last[storage] == at} & made - outputs
            live -= sum(self._storages[storage].bytes for storage in over)
        size = sum(self._storages[storage].bytes for storage in outputs)
        return Operation(
            node.name,
            node.seconds,
            sorted(node.reads),
            sorted(outputs),
            backward=True,
            workspace=max(0, most - size),
            unpacks=node.numbers,
        )


class _BackwardTrace(OperatorTrace):  # type: ignore[no-untyped-call]
    """Hands the operators of a backward to the trace of its step."""

    def __init__(self, step: _StepTrace) -> None:
        super().__init__({}, None)
        self._step = step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note it unless it is a view."""
        if traits_of(func).is_view:
            return func(*args, **(kwargs or {}))
        return self._step.in_backward(func, args, kwargs or {})


def _joined(nodes: Sequence[_Node], forward: set[int]) -> list[_Node]:
    """The nodes that unpack something, or read what the forward made, with the others between them."""
    joined: list[_Node] = []
    for node in nodes:
        if not joined or node.numbers or node.reads & forward:
            joined.append(node)
        else:
            before = joined[-1]
            joined[-1] = replace(before, runs=before.runs + node.runs, seconds=before.seconds + node.seconds)
    return joined
