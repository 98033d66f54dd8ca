"""The graph of a block: its operators as they ran once, with the storages that they read, make and write into.

The rule: the block runs once with a graph, under a dispatch mode. Views are resolved to their storages, and operators
that neither make nor write into a storage are left out. The backward reads what the graph saves; it is assumed to do so
in the opposite order. An operator that can be rerun is timed the first time that it occurs with arguments of these
shapes and values: it runs some times more on the same arguments, and the results are dropped. The shortest time counts,
since other load on the machine only adds to it, and it is used for all blocks of the process, so that equal models get
equal plans. Storages have the names of results by which they are dropped (lineage.py); operators have their module and
the line of the user's code.

What it can miss: the workspace of kernels. So the bytes of a block's options are measured, not computed from the graph.

The cost: the block's operators, some ten times. No tensor is held: memory is that of one run and one more result.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from remat.frameworks.torch.internals.autocast import forget_casts
from remat.frameworks.torch.internals.dispatch import DispatchMode, Operator
from remat.frameworks.torch.lineage.lineage import OperatorCounter, result_name, without_graph
from remat.frameworks.torch.lineage.operator_traits import OperatorTraits, tensors_among, traits_of
from remat.measuring.merged_writes import merged_writes
from remat.problem import Graph
from remat.problem.operation import Operation, Storage
from remat.pytree import flatten

__all__ = ["OperatorTrace", "trace_block"]

ROUNDS = 3
ROUND = 2e-3  # seconds of one round of runs of an operator, unless a single run takes longer
MOST_TIMED = 10_000  # operators whose seconds are cached
_seconds: dict[Hashable, float] = {}
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, sys.modules["remat"]))


def trace_block(
    block: Callable[[Any], Any],
    x: Any,
    modules: Mapping[int, str],
    device: torch.device | None,
    *,
    in_place: bool = True,
) -> Graph:
    """The graph of a block that is called with `x`; `modules` has the names of its modules by id.

    With `in_place`, an operator that writes into the result of another is merged with it into one operation.
    """
    trace = OperatorTrace(modules, device)
    forget_casts()
    with torch.enable_grad(), saved_tensors_hooks(trace.pack, _identity), trace:
        out = block(x)
    return trace.graph((leaf for leaf in flatten(out)[0] if isinstance(leaf, Tensor)), in_place)


class OperatorTrace(DispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators of a forward as they run."""

    def __init__(self, modules: Mapping[int, str], device: torch.device | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules, self._device = modules, device
        self._counter = OperatorCounter()
        self._numbers: dict[int, tuple[ReferenceType[Any], int]] = {}  # of storages, by id
        self._storages: list[Storage] = []
        self._operations: list[Operation] = []
        self._saved: dict[int, None] = {}  # storages, in the order in which they were last saved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record it."""
        kwargs = kwargs or {}
        traits = traits_of(func)
        if traits.is_view:
            return func(*args, **kwargs)
        out, workspace = self.run(func, args, kwargs)
        occurrence = self._counter.next(traits.name)
        tensors = [*tensors_among(args), *tensors_among(kwargs.values())]
        inputs = [self._number(each, "") for each in tensors if each.layout is torch.strided]
        made = []
        for place, result in enumerate(out if isinstance(out, list | tuple) else (out,)):
            if isinstance(result, Tensor) and result.layout is torch.strided and not self._is_known(result):
                made.append(self._number(result, result_name(traits.name, occurrence, place)))
        writes = [self._number(each, "") for each in traits.written(args, kwargs) if each.layout is torch.strided]
        if made or writes:
            self._note(func, traits, args, kwargs, (inputs, made, writes), tensors, workspace)
        return out

    def run(self, func: Operator, args: Any, kwargs: Any) -> tuple[Any, int]:
        """The result of an operator, and its workspace; 0, since that is not known here."""
        return func(*args, **kwargs), 0

    def _note(
        self,
        func: Operator,
        traits: OperatorTraits,
        args: Any,
        kwargs: Any,
        storages: tuple[list[int], list[int], list[int]],
        tensors: list[Tensor],
        workspace: int,
    ) -> None:
        plain = all(type(each) in (Tensor, nn.Parameter) and each.layout is torch.strided for each in tensors)
        may_run_again = traits.in_place or traits.may_run_again(args, kwargs)
        repeatable = plain and torch.is_grad_enabled() and may_run_again
        seconds = 0.0
        if repeatable:
            seconds = self._time(func, (args[0].clone(), *args[1:]) if traits.in_place else args, kwargs)
        module, source = self._place(sys._getframe(2))
        self._operations.append(
            Operation(
                traits.name,
                seconds,
                *storages,
                repeatable=repeatable,
                workspace=workspace,
                module=module,
                source=source,
            )
        )

    def _is_known(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        known = self._numbers.get(id(storage))
        return known is not None and known[0]() is storage

    def _number(self, tensor: Tensor, name: str) -> int:
        """The number of a tensor's storage; a new storage gets this name."""
        storage = tensor.untyped_storage()
        if not self._is_known(tensor):
            self._numbers[id(storage)] = ref(storage), len(self._storages)
            self._storages.append(Storage(storage.nbytes(), name))
        return self._numbers[id(storage)][1]

    def _time(self, func: Operator, args: Any, kwargs: Any) -> float:
        """The seconds of an operator: cached, if it was timed with equal arguments before."""
        key = func, *(_signature(each) for each in args), *((name, _signature(each)) for name, each in kwargs.items())
        if key not in _seconds:
            if len(_seconds) >= MOST_TIMED:
                _seconds.clear()
            once = self._timed(func, args, kwargs, 1)
            times = max(1, min(20, int(ROUND / max(once, 1e-6))))
            rounds = [self._timed(func, args, kwargs, times) / times for _ in range(ROUNDS if once < 0.1 else 1)]
            _seconds[key] = min(rounds)
        return _seconds[key]

    def _timed(self, func: Operator, args: Any, kwargs: Any, times: int) -> float:
        self._finish()
        began = perf_counter()
        for _ in range(times):
            func(*args, **kwargs)
        self._finish()
        return perf_counter() - began

    def _finish(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)

    def _place(self, frame: FrameType | None) -> tuple[str, str]:
        """The innermost module of the block whose method is running, and the line of the user's code."""
        module, source = None, ""
        while frame is not None and (module is None or not source):
            if module is None and "self" in frame.f_code.co_varnames[:1]:
                module = self._modules.get(id(frame.f_locals.get("self")))
            if not source and not frame.f_code.co_filename.startswith(_LIBRARIES):
                source = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return module or "", source

    def pack(self, tensor: Tensor) -> Tensor:
        """Record that the graph saves a tensor."""
        if tensor.layout is torch.strided and self._is_known(tensor):
            number = self._number(tensor, "")
            self._saved.pop(number, None)
            self._saved[number] = None
        return without_graph(tensor)

    def graph(self, outputs: Iterable[Tensor], in_place: bool = True) -> Graph:
        """The graph, with a backward that reads the saved storages."""
        results = [self._number(each, "") for each in outputs if each.layout is torch.strided]
        operations = merged_writes(self._operations) if in_place else self._operations
        made = {storage for each in self._operations for storage in each.outputs}
        saved = [storage for storage in self._saved if storage in made]
        cotangent = len(self._storages)
        storages = [*self._storages, Storage(sum(self._storages[each].bytes for each in {*results} & made))]
        pullbacks = [Operation("pullback", 0.0, [storage, cotangent], backward=True) for storage in reversed(saved)]
        start = Operation("cotangent", 0.0, [], [cotangent], backward=True)
        return Graph([*operations, start, *pullbacks], storages, [each for each in results if each in made])


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _signature(value: Any) -> Hashable:
    """The properties of an argument on which the seconds of an operator depend."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return tuple(map(_signature, value)) if isinstance(value, list | tuple) else str(value)
