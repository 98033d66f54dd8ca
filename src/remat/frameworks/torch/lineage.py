"""Blocks that keep a part of what their backward needs: the rest is made again by the operators that made it.

In: a function, and the results of operators that are not to be kept. While the function runs, a dispatch mode remembers
the operator and the arguments of each such result (its *lineage*), and the graph saves a description of it instead of
the tensor. When the backward asks, the operator runs again, from results that are kept or made again in the same way:
just in time, once for a backward, and what it makes is let go after its last use. Nothing of the user's Python runs
again: no side effect happens twice, and there is no question of determinism beyond that of the kernels.

Rule 1. A result is described by its storage: the operator, the place among its results, and sizes and strides in it.

Rule 2. What is not named is kept, and so is what cannot be made again: results of operators that may not run again
(operator_traits.py), of those that run without a graph (custom `autograd.Function`s, `no_grad`), and of subclasses of
tensors. So a function that takes another way than the one that was planned needs more memory, and has its gradient.

Rule 3. What is kept is held as autograd holds saved tensors, and compared by version as autograd compares: writing into
it before the backward is an error. That holds for arguments of operators that run again, too.

Rule 4. Before an operator of the function writes into memory that is kept and a lineage reads, what depends on it is
made, and kept from then on. Memory that is made again is written into again (`relu_` after a norm), each time in a copy
of its own: what had read it before is made from it as it had been. Where the operator may not run again, the memory is
kept from then on.

Rule 5. What was made again belongs to one backward, and is dropped with its end. A second backward makes it again.

Rule 6. Operators run again without a graph and with autocast off, below everything that has led to them: casts are
operators of their own.

What it can miss: memory that is written into behind its version counter; streams, if a function has several: what one
has made again is used by another.

The cost: for each operator a few microseconds, and some ten for each result that is not kept.
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
from remat.frameworks.torch.dispatch import DispatchMode, Operator, is_autocast, without_autocast, without_modes
from remat.frameworks.torch.fsdp import gathered
from remat.frameworks.torch.functorch import in_transform, outside_transforms
from remat.frameworks.torch.graph import current_backward
from remat.frameworks.torch.lineage_results import Backward, Kept, Operation, OwnView, Result, Scratch, View
from remat.frameworks.torch.operator_traits import OperatorTraits, tensors_among, traits_of

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
    """How a result is named in a plan: operator, how often it ran before in the block, place among its results."""
    return f"{operator} {occurrence}.{place}"


@lru_cache(maxsize=1024)
def dropped_results(names: tuple[str, ...]) -> Dropped:
    """The results with these names."""
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
    """What a function returns; of what its backward needs, these results are made again.

    The parameters of `sharded` modules (FSDP2) are gathered for that, and freed again.
    """
    with Lineage(dropped, sharded).recording():
        return fn(*args, **kwargs)


class OperatorCounter:
    """Names the operators of a block as they come: how often each has run before."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> int:
        """How often the operator has run before this time."""
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return count


class Lineage(DispatchMode):  # type: ignore[no-untyped-call]
    """Remembers, while a function runs, how the results were made that are not kept."""

    def __init__(self, dropped: Dropped, sharded: Sequence[nn.Module] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dropped, self._counter = dropped, OperatorCounter()
        # By the id of a storage, which another one may have later: so the storage is compared.
        self._results: dict[int, tuple[ReferenceType[Any], Result]] = {}
        self._readers: dict[int, list[ReferenceType[Operation]]] = {}  # of memory that is kept
        self._backward = Backward(sharded)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A block that is recorded; afterwards only its graph refers to what is kept."""
        try:
            with saved_tensors_hooks(self.pack, unpack), self:
                yield
        finally:
            self.forget()

    def forget(self) -> None:
        """Let go of everything that the graph does not need: hooks, and with them this object, live as long as it."""
        self._results.clear()
        self._readers.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and remember it if one of its results is not kept."""
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
        """Nothing: who follows a plan knows results by their names."""

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
            if id(storage) not in memory:  # that of an argument is not the operator's to make
                made = Result(operation, place, result_name(traits.name, occurrence, place))
                operation.results.append(ref(made))
                self._results[id(storage)] = ref(storage), made
                self.note(made, result, made.name)

    def _written_again(self, func: Operator, args: Any, kwargs: Any) -> Result | None:
        """How memory that is made again is made with what is about to be written into it; None if it is kept."""
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
        """The result that a tensor is, or is a view of, if it is made again."""
        storage = tensor.untyped_storage()
        known = self._results.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def _before_writing(self, tensors: Iterator[Tensor]) -> None:
        """Make what depends on memory that is about to change, and forget how that memory was made."""
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
        """What the graph saves for a tensor."""
        view = self.view_of(tensor)
        if view is None:
            return Kept(without_graph(tensor))
        view.want()
        return view

    def view_of(self, tensor: Tensor) -> View | None:
        """How a tensor is made again; None if it is kept."""
        plain = type(tensor) is Tensor and tensor.layout is torch.strided
        result = self._result_of(tensor) if plain and self._results else None
        return None if result is None else View(result, tensor)


def _plain_tensors(args: Any, kwargs: Any) -> list[Tensor] | None:
    """The tensors among arguments; None if one of them is of a subclass, or sparse."""
    tensors = [*tensors_among(args), *tensors_among(kwargs.values())]
    return tensors if all(type(each) in _PLAIN and each.layout is torch.strided for each in tensors) else None


def without_graph(tensor: Tensor) -> Tensor:
    """A tensor to be saved, without its graph, which autograd adds when it unpacks.

    A node that saves its own result would hold itself: a graph without a backward would never be freed.
    """
    if tensor.grad_fn is None:
        return tensor
    with without_modes():  # no operator of the block
        return tensor.detach()


@not_compiled
def unpack(saved: Any) -> Tensor:
    """The tensor that `pack` was given, for the backward that runs; others are themselves."""
    if isinstance(saved, Kept):
        return saved.take(-1)
    if not isinstance(saved, View):
        tensor: Tensor = saved
        return tensor
    sharded, task = saved.sharded, current_backward()
    # A backward is without a graph but for second derivatives, and mostly without autocast: entering takes as long.
    if not (sharded or torch.is_grad_enabled() or is_autocast() or in_transform()):
        return saved.take(task)
    with outside_transforms(), torch.no_grad(), without_autocast(), gathered(sharded) if sharded else _NOTHING:
        return saved.take(task)
