"""Results of operators that are recomputed when a backward needs them, and their inputs.

An `Operation` is an operator that ran, with its arguments: each tensor is `Kept`, or a `View` of a `Result` that is
recomputed itself. A result counts its uses in a backward: saved tensors of the graph, and operators that are rerun. It
is recomputed at the first use, and dropped after the last. An operation, and so its arguments, is referred to only by
its results, and these only by their users.
"""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from remat.frameworks.torch.internals.dispatch import Operator, negated
from remat.frameworks.torch.internals.graph import call_after_backward, version

__all__ = ["Backward", "Kept", "Operation", "OwnView", "Result", "Scratch", "View", "held_by"]


class Backward:
    """The results that are held for the running backward until their last use; its end drops the rest."""

    __slots__ = ("__weakref__", "_held", "_task", "sharded")

    def __init__(self, sharded: Sequence[nn.Module] = ()) -> None:
        self.sharded = sharded  # modules whose parameters are gathered while operators are rerun
        self._task = -1
        self._held: list[ReferenceType[Result]] = []  # weak, since a result keeps its inputs alive

    def hold(self, result: "Result", task: int) -> None:
        """Register a result to be dropped when this backward has ended."""
        if task != self._task:
            self._task, self._held = task, []
            call_after_backward(partial(_end, ref(self), task))
        self._held.append(ref(result))

    def end(self, task: int) -> None:
        """Drop the results that are held for this backward."""
        if task == self._task:
            for reference in self._held:
                result = reference()
                if result is not None:
                    result.end()
            self._task, self._held = -1, []


def held_by(saved: object) -> "list[Tensor]":
    """The tensors that a saved object of a graph keeps alive: itself if it is kept, else the inputs of its lineage."""
    found: list[Tensor] = []
    ready, seen = [saved], set[int]()
    while ready:
        each = ready.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Kept):
            found.append(each._tensor)
        elif isinstance(each, View):
            ready.append(each._result)
        elif isinstance(each, Result):
            found += [] if each._first is None else [each._first._tensor]
            if each._kept and each._value is not None:
                found.append(each._value)
            elif not each._kept:
                ready += [*each._operation._args, *each._operation._kwargs.values()]
        elif isinstance(each, list | tuple):
            ready += each
    return found


def _end(reference: ReferenceType[Backward], task: int) -> None:
    backward = reference()
    if backward is not None:
        backward.end(task)


class Operation:
    """An operator with its arguments, which can be rerun."""

    __slots__ = ("__weakref__", "_args", "_func", "_is_wanted", "_kwargs", "backward", "results")

    def __init__(self, func: Operator, args: list[Any], kwargs: dict[str, Any], backward: Backward) -> None:
        self._func, self._args, self._kwargs, self.backward = func, args, kwargs, backward
        self.results: list[ReferenceType[Result]] = []
        self._is_wanted = False

    def want(self) -> None:
        """Count one use of each argument, once: it runs once per backward, however many of its results are used."""
        if not self._is_wanted:
            self._is_wanted = True
            for argument in (*self._args, *self._kwargs.values()):
                _want(argument)

    def run(self, task: int) -> Sequence[Any]:
        """Rerun the operator on arguments that are kept or recomputed; return its results."""
        args = [_taken(each, task) for each in self._args]
        out = self._func(*args, **{name: _taken(each, task) for name, each in self._kwargs.items()})
        return out if isinstance(out, list | tuple) else (out,)

    def keep_results(self) -> None:
        """Rerun it now and keep the results, since its arguments are about to change."""
        wanted = [result for reference in self.results if (result := reference()) is not None]
        self.results = []  # so that this happens once, even if an argument changes again
        if wanted:
            with torch.no_grad():
                results = self.run(-1)
            for result in wanted:
                result.keep(results[result.place])


class Result:
    """A storage that an operator made and that is not kept but recomputed."""

    __slots__ = ("__weakref__", "_first", "_kept", "_left", "_operation", "_task", "_uses", "_value", "name", "place")

    def __init__(self, operation: Operation, place: int, name: str = "") -> None:
        self._operation, self.place, self.name = operation, place, name
        # In one backward: saved tensors of the graph, and operators that are rerun.
        self._uses: float = 0
        self._first: Kept | None = None  # the operator's first result, if a plan holds it for a while
        self._task = -1
        self._left: float = 0
        self._value: Tensor | None = None
        self._kept = False

    @property
    def sharded(self) -> Sequence[nn.Module]:
        """The modules whose parameters must be gathered to recompute it."""
        return () if self._kept else self._operation.backward.sharded

    def want(self) -> None:
        """Count one use."""
        self._uses += 1
        if not self._kept:
            self._operation.want()

    def hold_first(self, tensor: Tensor | None) -> None:
        """Hold the operator's first result until a backward drops it; None if it is about to be overwritten."""
        self._first = None if tensor is None else Kept(tensor)

    def retain(self) -> None:
        """From now on, hold recomputed values until `drop`, however often they are used."""
        self._uses = inf

    def take(self, task: int) -> Tensor:
        """The tensor that the operator made, for one use in a backward."""
        if self._kept:
            assert self._value is not None
            return self._value
        if task == -1:  # outside a backward nothing is held
            tensor: Tensor = self._operation.run(task)[self.place]
            return tensor
        value = self._next_use(task)
        self._hold(value)
        return value

    def take_own(self, task: int) -> Tensor:
        """The same for an operator that writes into it: a tensor that nobody else refers to."""
        if self._kept or task == -1:
            return _copied(self.take(task)) if self._kept else self.take(task)
        value = self._next_use(task)
        if self._left <= 0:
            return value
        self._hold(value)
        return _copied(value)

    def _next_use(self, task: int) -> Tensor:
        self._begin(task)
        value, self._value = self._value, None
        self._left -= 1
        if value is not None:
            return value
        results = self._operation.run(task)
        for reference in self._operation.results:
            other = reference()
            if other is not None and other is not self and not other._kept:
                other._begin(task)
                other._hold(results[other.place])
        made: Tensor = results[self.place]
        return made

    def _begin(self, task: int) -> None:
        if task != self._task:
            first, self._first = self._first, None
            # Only the plan asked for it: if it was written into meanwhile, it is recomputed instead.
            self._value = first.take(task) if first is not None and first.is_unchanged else None
            self._task, self._left = task, self._uses

    def _hold(self, value: Tensor) -> None:
        """Hold a value if it has further uses."""
        if self._left > 0 and self._value is None and not self._kept:
            self._value = value
            self._operation.backward.hold(self, self._task)

    def drop(self) -> None:
        """Drop the recomputed value, and the first one."""
        if not self._kept:
            self._value = self._first = None

    def end(self) -> None:
        """Drop the value that was recomputed for a backward, which has ended."""
        if not self._kept:
            self._task, self._value = -1, None

    def keep(self, value: Tensor) -> None:
        """Keep this value from now on, and drop the lineage."""
        if not self._kept:
            self._value, self._kept, self._first = value, True, None
            del self._operation


class Kept:
    """A tensor that is kept, and must not be written into."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor, version(tensor)

    @property
    def is_unchanged(self) -> bool:
        """Whether it has not been written into."""
        return version(self._tensor) == self._version

    def take(self, _: int) -> Tensor:
        """The tensor, or a RuntimeError if it was written into."""
        if not self.is_unchanged:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self._tensor.dtype} {list(self._tensor.shape)} is at version {version(self._tensor)}; expected "
                f"version {self._version} instead. A block under remat.auto_checkpoint needs it to recompute "
                "what it did not keep: write into a copy, or after the backward"
            )
        return self._tensor


class Scratch:
    """A tensor that an operator writes into without reading it; a rerun must not change it."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def take(self, _: int) -> Tensor:
        """A copy of the tensor."""
        return self._tensor.clone()


class View:
    """A tensor in a storage that is recomputed."""

    __slots__ = ("_dtype", "_is_conjugate", "_is_negative", "_offset", "_result", "_size", "_stride")

    def __init__(self, result: Result, tensor: Tensor) -> None:
        self._result = result
        self._size, self._stride, self._offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        self._dtype, self._is_conjugate, self._is_negative = tensor.dtype, tensor.is_conj(), tensor.is_neg()

    @property
    def name(self) -> str:
        """The name of the result."""
        return self._result.name

    @property
    def sharded(self) -> Sequence[nn.Module]:
        """The modules whose parameters must be gathered when it is taken."""
        return self._result.sharded

    def want(self) -> None:
        """Count one use."""
        self._result.want()

    def take(self, task: int) -> Tensor:
        """The tensor, for one use in a backward."""
        return self._in(self._result.take(task))

    def _in(self, base: Tensor) -> Tensor:
        is_whole = base.shape == self._size and base.stride() == self._stride
        if is_whole and base.dtype == self._dtype and base.storage_offset() == self._offset:
            tensor = base  # comparing takes less time than making a view
        elif base.dtype == self._dtype:
            tensor = base.as_strided(self._size, self._stride, self._offset)
        else:
            empty = torch.empty(0, dtype=self._dtype, device=base.device)
            tensor = empty.set_(base.untyped_storage(), self._offset, self._size, self._stride)
        if self._is_conjugate:
            tensor = tensor.conj()
        return negated(tensor) if self._is_negative else tensor


class OwnView(View):
    """A tensor that an operator writes into, in memory that nobody else refers to."""

    __slots__ = ()

    def take(self, task: int) -> Tensor:
        """The tensor, with its value before the write."""
        return self._in(self._result.take_own(task))


def _copied(tensor: Tensor) -> Tensor:
    """The same tensor in a copy of its whole storage, so that views of other parts of it can be taken."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _want(argument: Any) -> None:
    if isinstance(argument, View):
        argument.want()
    elif isinstance(argument, list):
        for each in argument:
            _want(each)


def _taken(argument: Any, task: int) -> Any:
    if isinstance(argument, Kept | View | Scratch):
        return argument.take(task)
    return [_taken(each, task) for each in argument] if isinstance(argument, list) else argument
