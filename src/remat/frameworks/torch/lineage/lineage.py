"""Blocks that keep only part of what their backward needs: the operators that made the rest recompute it.

In: a function, and the results of operators that are not to be kept. While the function runs, a dispatch mode records
the operator and the arguments of each such result (its *lineage*), and the graph saves a description of the tensor in
its place. When the backward unpacks it, the operator is rerun, on inputs that are kept or recomputed in the same way:
just in time, once per backward, and its results are freed after their last use. None of the user's Python is rerun: no
side effect happens twice, and determinism is a question of the kernels only.

Rule 1. A saved tensor is described by its storage (the operator, and the place among its results) and by its sizes and
strides in it.

Rule 2. Results that are not named are kept, and so are those that cannot be recomputed: results of operators that
cannot be rerun (operator_traits.py), of operators that run without a graph (custom `autograd.Function`s, `no_grad`),
and tensor subclasses. So a function that takes another path than the planned one needs more memory, but its gradient is
right.

Rule 3. What is kept is held as autograd holds saved tensors, with the same version check: writing into it before the
backward is an error. That includes the arguments of operators that will be rerun.

Rule 4. Before an operator of the function writes into kept memory that a lineage reads, the results that depend on it
are computed, and kept from then on. A write into memory that is recomputed (`relu_` after a norm) is rerun as well,
each time in a separate copy: results that read the memory before the write are recomputed from its earlier value. If
the operator that writes cannot be rerun, the memory is kept from then on.

Rule 5. A recomputed result belongs to one backward and is dropped at its end. A second backward recomputes it.

Rule 6. Operators are rerun without a graph and with autocast off, at the lowest level of dispatch: casts are separate
operators there.

What it can miss: writes that bypass a tensor's version counter; and, in a function that uses several streams, that a
result recomputed on one stream is used on another.

The cost: a few microseconds per operator, and some ten per result that is not kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from remat.frameworks.compilers import not_compiled
from remat.frameworks.torch.internals.dispatch import (
    DispatchMode,
    Operator,
    is_autocast,
    without_autocast,
    without_modes,
)
from remat.frameworks.torch.internals.fsdp import gathered
from remat.frameworks.torch.internals.functorch import in_transform, outside_transforms
from remat.frameworks.torch.internals.graph import current_backward
from remat.frameworks.torch.lineage.lineage_results import Backward, Kept, Operation, OwnView, Result, Scratch, View
from remat.frameworks.torch.lineage.operator_traits import OperatorTraits, tensors_among, traits_of

__all__ = [
    "Dropped",
    "Lineage",
    "OperatorCounter",
    "dropped_results",
    "result_name",
    "run_by_lineage",
    "unpack",
    "without_graph",
]

Dropped: TypeAlias = Mapping[tuple[str, int], tuple[int, ...]]  # places of results, by operator and occurrence
_NOTHING: nullcontext[None] = nullcontext()
_PLAIN = (Tensor, torch.nn.Parameter)


def result_name(operator: str, occurrence: int, place: int) -> str:
    """The name of a result in a plan: operator, number of its earlier runs in the block, place among its results."""
    return f"{operator} {occurrence}.{place}"


@lru_cache(maxsize=1024)
def dropped_results(names: tuple[str, ...]) -> Dropped:
    """The results with these names, in the form that `Lineage` looks up."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for name in names:
        operator, _, numbers = name.rpartition(" ")
        occurrence, place = map(int, numbers.split("."))
        found[operator, occurrence] = (*found.get((operator, occurrence), ()), place)
    return found


def run_by_lineage(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dropped: Dropped,
    sharded: Sequence[nn.Module] = (),
) -> Any:
    """Call a function such that its backward recomputes the results in `dropped`.

    The parameters of `sharded` modules (FSDP2) are gathered for the recomputation, and freed afterwards.
    """
    with Lineage(dropped, sharded).recording():
        return fn(*args, **kwargs)


class OperatorCounter:
    """Counts the runs of each operator of a block, by which they are named."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> int:
        """The number of earlier runs of the operator; this one is counted, too."""
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return count


class Lineage(DispatchMode):  # type: ignore[no-untyped-call]
    """While a function runs, records how the results that are not kept were made."""

    def __init__(self, dropped: Dropped, sharded: Sequence[nn.Module] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dropped, self._counter = dropped, OperatorCounter()
        # By the id of a storage; another storage may get the same id later, so the storage itself is compared.
        self._results: dict[int, tuple[ReferenceType[Any], Result]] = {}
        self._readers: dict[int, list[ReferenceType[Operation]]] = {}  # of kept memory, by the id of its storage
        self._backward = Backward(sharded)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context that is recorded; afterwards only its graph refers to what is kept."""
        try:
            with saved_tensors_hooks(self.pack, unpack), self:
                yield
        finally:
            self.forget()

    def forget(self) -> None:
        """Drop what the graph does not need; the hooks, and so this object, live as long as the graph."""
        self._results.clear()
        self._readers.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record it if one of its results is not kept."""
        kwargs = kwargs or {}
        traits = traits_of(func)
        if traits.is_view:
            return func(*args, **kwargs)
        written = None
        if traits.writes:
            if traits.in_place and self._results and torch.is_grad_enabled():
                written = self._written_again(func, args, kwargs)
            self._before_writing(traits.written(args, kwargs))
        out = func(*args, **kwargs)
        if written is not None:
            storage = args[0].untyped_storage()
            self._results[id(storage)] = ref(storage), written
            self.note(written, args[0], written.name)
        occurrence = self._counter.next(traits.name)
        places = self._dropped.get((traits.name, occurrence))
        if places and torch.is_grad_enabled() and traits.may_run_again(args, kwargs):
            self._remember(func, traits, args, kwargs, out, occurrence, places)
        return out

    def note(self, result: Result, tensor: Tensor, name: str) -> None:
        """Called for each result that is not kept; does nothing here."""

    def _remember(
        self,
        func: Operator,
        traits: OperatorTraits,
        args: Any,
        kwargs: Any,
        out: Any,
        occurrence: int,
        places: tuple[int, ...],
    ) -> None:
        tensors = _plain_tensors(args, kwargs)
        if tensors is None:
            return
        scratch = [where for pair in traits.scratch(args, kwargs) for where in pair]  # positions, and names
        operation = Operation(
            func,
            [self._argument(each, at in scratch) for at, each in enumerate(args)],
            {name: self._argument(each, name in scratch) for name, each in kwargs.items()},
            self._backward,
        )
        self._note_readers(operation, tensors)
        memory = {id(each.untyped_storage()) for each in tensors}
        results = out if isinstance(out, list | tuple) else (out,)
        for place in places:
            result = results[place] if place < len(results) else None
            if type(result) is not Tensor or result.layout is not torch.strided or not result.numel():
                continue
            storage = result.untyped_storage()
            if id(storage) not in memory:  # the operator did not make the storage of an argument
                made = Result(operation, place, result_name(traits.name, occurrence, place))
                operation.results.append(ref(made))
                self._results[id(storage)] = ref(storage), made
                self.note(made, result, made.name)

    def _written_again(self, func: Operator, args: Any, kwargs: Any) -> Result | None:
        """The new lineage of recomputed memory that an operator is about to write into; None if it is kept."""
        before, tensors = self._result_of(args[0]), _plain_tensors(args, kwargs)
        if before is None or tensors is None:
            return None
        operation = Operation(
            func,
            [OwnView(before, args[0]), *map(self._argument, args[1:])],
            {name: self._argument(each) for name, each in kwargs.items()},
            self._backward,
        )
        self._note_readers(operation, tensors[1:])
        made = Result(operation, 0, before.name)
        operation.results.append(ref(made))
        return made

    def _note_readers(self, operation: Operation, tensors: Sequence[Tensor]) -> None:
        for each in tensors:
            if self._result_of(each) is None:
                self._readers.setdefault(id(each.untyped_storage()), []).append(ref(operation))

    def _argument(self, value: Any, is_scratch: bool = False) -> Any:
        if isinstance(value, Tensor):
            if is_scratch:
                return Scratch(value)
            result = self._result_of(value)
            return Kept(value) if result is None else View(result, value)
        return [self._argument(each) for each in value] if isinstance(value, list | tuple) else value

    def _result_of(self, tensor: Tensor) -> "Result | None":
        """The result that a tensor is or is a view of, if that is recomputed; else None."""
        storage = tensor.untyped_storage()
        known = self._results.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def _before_writing(self, tensors: Iterator[Tensor]) -> None:
        """Compute the results that depend on memory that is about to change, and forget that memory's lineage."""
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            key = id(tensor.untyped_storage())
            for reference in self._readers.pop(key, ()):
                operation = reference()
                if operation is not None:
                    operation.keep_results()
            known = self._results.pop(key, None)
            if known is not None:
                known[1].hold_first(None)

    @not_compiled
    def pack(self, tensor: Tensor) -> "Kept | View":
        """The object that the graph saves in place of a tensor."""
        view = self.view_of(tensor)
        if view is None:
            return Kept(without_graph(tensor))
        view.want()
        return view

    def view_of(self, tensor: Tensor) -> View | None:
        """The description from which a tensor is recomputed; None if it is kept."""
        plain = type(tensor) is Tensor and tensor.layout is torch.strided
        result = self._result_of(tensor) if plain and self._results else None
        return None if result is None else View(result, tensor)


def _plain_tensors(args: Any, kwargs: Any) -> list[Tensor] | None:
    """The tensors among arguments; None if one of them is of a subclass or sparse."""
    tensors = [*tensors_among(args), *tensors_among(kwargs.values())]
    return tensors if all(type(each) in _PLAIN and each.layout is torch.strided for each in tensors) else None


def without_graph(tensor: Tensor) -> Tensor:
    """A tensor to be saved, without its graph, which autograd restores when it unpacks.

    A node that saves its own result would otherwise refer to itself, and without a backward never be freed.
    """
    if tensor.grad_fn is None:
        return tensor
    if type(tensor) not in _PLAIN:  # without dispatch, a subclass would become a plain tensor without memory
        return tensor.detach()
    with without_modes():  # not an operator of the block
        return tensor.detach()


@not_compiled
def unpack(saved: Any) -> Tensor:
    """The tensor that `pack` has saved, for the backward that is running; other objects unchanged."""
    if isinstance(saved, Kept):
        return saved.take(-1)
    if not isinstance(saved, View):
        tensor: Tensor = saved
        return tensor
    sharded, task = saved.sharded, current_backward()
    # The usual backward has no graph and no autocast, and entering these contexts takes as long as the rest.
    if not (sharded or torch.is_grad_enabled() or is_autocast() or in_transform()):
        return saved.take(task)
    with outside_transforms(), torch.no_grad(), without_autocast(), gathered(sharded) if sharded else _NOTHING:
        return saved.take(task)
