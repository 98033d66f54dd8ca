"""The state of tensors that a function reaches: requires_grad, hooks, `.data`, and numbers that it may write into.

For a repeated run, each tensor gets what it had at the call, and afterwards what it had before the repetition. The
numbers of tensors that require no gradient are copied: up to HELD bytes always, up to COPIED bytes if the first run
changes them, and of statistics (buffers of modules in training) always. If the first run is seen to write into another
tensor (a parameter initialised from the data, or rows that nn.Embedding scales down), the repetition must leave it as
it was after the first run, or is refused. For that its numbers are copied; for a large one, which must not have changed
since, a checksum is taken.

What it can miss: numbers written without a new version (`.data`), if they have more than HELD bytes and are on a device
other than the CPU, where comparing them would stall the pipeline, or more than COPIED bytes and are not statistics. In
loops on such a device, also numbers of any size that are not statistics.

The cost: 1 us for a parameter, 4 us for a tensor that is copied. Former memory lives as long as the graph.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from remat.frameworks.torch.internals.graph import backward_hooks, quick_version, set_backward_hooks, version
from remat.frameworks.torch.internals.storage import storage_id
from remat.frameworks.torch.leaves import device_fingerprint
from remat.frameworks.torch.replay.small_buffers import SmallBuffers
from remat.frameworks.torch.replay.tensor_value import COPIED, HELD, is_plain, same_memory, set_data
from remat.frameworks.torch.replay.watch import PARAMETERS, unnoticed
from remat.segments import mutation_error

__all__ = ["Memory", "Storages", "TensorStates", "in_memory", "memory_of"]


def _checksum(data: Tensor) -> Tensor:
    """Two numbers that change with any element, barring improbable coincidences: sums of the bits and of the values."""
    flat = data.reshape(-1).view(torch.uint8)
    words = flat.numel() // 8 * 8
    bits = flat[:words].view(torch.int64).sum() + flat[words:].sum()
    return torch.stack([bits, device_fingerprint(data).view(torch.int64)])


class _TensorState:
    """One tensor: what it had at the call, and which of that a repetition has to restore."""

    __slots__ = ("_before", "_checksum", "_data", "_hooks", "_numbers", "required_grad", "tensor", "written")

    def __init__(self, tensor: Tensor, copied: int) -> None:
        self.tensor = tensor
        self.required_grad, self._hooks = tensor.requires_grad, backward_hooks(tensor)
        self._before, self.written = version(tensor), False
        # A subclass manages memory in its own way: only its flag and hooks are restored.
        self._data = tensor.data if is_plain(tensor) else None
        is_copied = self._data is not None and not self.required_grad and self._data.nbytes <= copied
        self._numbers = self._data.clone() if self._data is not None and is_copied else None
        self._checksum: Tensor | None = None

    @classmethod
    def of_parameter(cls, tensor: Tensor, data: Tensor, version: int) -> "_TensorState":
        """The state of a parameter without hooks that was in this memory and had this version."""
        self = cls.__new__(cls)
        self.tensor, self.required_grad, self.written, self._hooks = tensor, True, False, {}
        self._data, self._before, self._numbers, self._checksum = data, version, None, None
        return self

    def finish_forward(self) -> None:
        """Note whether the first run has written into the tensor; drop a large copy if it has not."""
        now, copy = version(self.tensor), self._numbers
        self.written, self._before = now != self._before, now
        is_large = copy is not None and copy.nbytes > HELD and not self.written
        if copy is not None and is_large and (not copy.is_cpu or torch.equal(copy, self.tensor.detach())):
            self._numbers = None
        if self.written and self.required_grad and self._data is not None and same_memory(self.tensor, self._data):
            # Its version is of no use from now on, since each call of the function changes it.
            if self._data.nbytes <= COPIED:
                self._numbers = self._data.clone()
            else:
                self._checksum = _checksum(self._data)

    @property
    def is_restored(self) -> bool:
        """Whether the tensor's numbers are restored after a repetition."""
        return self._numbers is not None or (self.written and self._data is not None)

    def written_since(self) -> int | None:
        """The version that a parameter had after the first run, if its numbers have changed since; else None."""
        if not self.required_grad or version(self.tensor) == self._before or self._numbers is not None:
            return None
        is_same = self._checksum is not None and torch.equal(self._checksum, _checksum(self.tensor.detach()))
        return None if is_same else self._before

    def _is_as_at_call(self) -> bool:
        """Whether the tensor has what it had at the call and no numbers need restoring, which is the usual case."""
        tensor, data = self.tensor, self._data
        if self.is_restored or tensor.requires_grad != self.required_grad:
            return False
        if self.required_grad and (self._hooks or backward_hooks(tensor)):
            return False
        return data is None or same_memory(tensor, data)

    def enter(self) -> "_Present | None":
        """Give the tensor what it had at the call; returns what it had before, or None if that is the same."""
        if self._is_as_at_call():
            return None
        tensor = self.tensor
        present = _Present(
            None if self._data is None else tensor.data,
            tensor.detach().clone() if self.is_restored else None,
            backward_hooks(tensor) if self.required_grad else {},
            tensor.requires_grad,
        )
        self._set_flags(self.required_grad, self._hooks)
        if self._data is not None:
            set_data(tensor, self._data, self._numbers)
        return present

    def leave(self, present: "_Present | None") -> bool:
        """Give the tensor what it had before; False if the repetition has changed what it must not."""
        if present is None:
            if self._is_as_at_call():
                return True
            present = _Present(self._data, None, self._hooks, self.required_grad)
        numbers = present.numbers if self._numbers is None else self._numbers if self.required_grad else None
        repeats = numbers is None or torch.equal(numbers, self.tensor.detach())
        if present.data is not None:
            set_data(self.tensor, present.data, present.numbers)
        self._set_flags(present.required_grad, present.hooks)
        return repeats

    def _set_flags(self, required_grad: bool, hooks: Mapping[int, Any]) -> None:
        if self.tensor.requires_grad != required_grad and self.tensor.is_leaf:
            self.tensor.requires_grad_(required_grad)
        if self.required_grad:
            set_backward_hooks(self.tensor, hooks)


class _Present(NamedTuple):
    """What a tensor has before a repetition."""

    data: Tensor | None
    numbers: Tensor | None
    hooks: Mapping[int, Any]
    required_grad: bool


class _Parameters:
    """Parameters that require gradients and have no hooks, checked together as long as nothing about them changes."""

    __slots__ = ("_data", "_versions", "tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self._data, self._versions = [each.data for each in tensors], [*map(quick_version, tensors)]

    def states(self) -> list[_TensorState]:
        """The same parameters, as separate states."""
        return list(map(_TensorState.of_parameter, self.tensors, self._data, self._versions))

    def are_written(self) -> bool:
        """Whether a parameter has a new version."""
        return [*map(quick_version, self.tensors)] != self._versions

    def are_as_at_call(self) -> bool:
        """Whether all have the same memory and flags as at the call, and no hooks."""
        tensors, data = self.tensors, self._data
        return (
            all(each.requires_grad and not backward_hooks(each) for each in tensors)
            and [each.data_ptr() for each in tensors] == [each.data_ptr() for each in data]
            and [each.shape for each in tensors] == [each.shape for each in data]
        )


Memory: TypeAlias = Sequence[Tensor | None]  # for each tensor, one in its memory; None if it stays where it is


class Storages(NamedTuple):
    """Identities of memory."""

    restored: frozenset[int]  # numbers are restored after a repetition
    written: frozenset[int]  # the first run has written into it


class TensorStates:
    """The tensors that a function reaches, as they were when this object was created.

    Small ones without a gradient are copied together (small_buffers.py). With `compiled` code, which may depend on
    their addresses, they are restored in their own memory.
    """

    def __init__(self, tensors: Iterable[Tensor], statistics: Sequence[Tensor] = (), *, compiled: bool = False) -> None:
        large = {id(tensor): tensor.nbytes for tensor in statistics}
        self._compiled = compiled
        with unnoticed():
            usual, small, others = list[Tensor](), list[Tensor](), list[Tensor]()
            for tensor in tensors:
                (usual if _is_usual(tensor) else small if _is_small(tensor) else others).append(tensor)
            self._states = [_TensorState(tensor, max(COPIED, large.get(id(tensor), 0))) for tensor in others]
            self._usual = _Parameters(usual) if usual else None
            self._small = SmallBuffers(small) if small else None
            self._versions = [(tensor, quick_version(tensor)) for tensor in small]
        self._written: list[Tensor] = []  # among the small ones

    def finish_forward(self) -> None:
        """Note what the first run has written into, and drop large copies of what it has not; called after that run."""
        with unnoticed():
            if self._usual is not None and self._usual.are_written():
                self._take_one_by_one()
            for state in self._states:
                state.finish_forward()
        self._written = [tensor for tensor, before in self._versions if quick_version(tensor) != before]

    def _take_one_by_one(self) -> None:
        assert self._usual is not None
        self._states, self._usual = [*self._states, *self._usual.states()], None

    def written_since(self) -> list[tuple[Tensor, int]]:
        """The parameters that were written into since the first run, and the versions that they had then."""
        with unnoticed():
            if self._usual is not None and self._usual.are_written():
                self._take_one_by_one()
            return [(state.tensor, before) for state in self._states if (before := state.written_since()) is not None]

    def parameters(self) -> list[Tensor]:
        """The tensors that required a gradient at the call."""
        usual = [] if self._usual is None else self._usual.tensors
        return [*usual, *(state.tensor for state in self._states if state.required_grad)]

    def parameter_ids(self) -> frozenset[int]:
        """The ids of the parameters, which a graph saves without a copy."""
        usual = [] if self._usual is None else self._usual.tensors
        others = [state.tensor for state in self._states if type(state.tensor) in PARAMETERS]
        return frozenset([id(each) for each in (*usual, *others)])

    def is_written(self, tensor: Tensor) -> bool:
        """Whether the first run has written into a tensor."""
        return any(state.written for state in self._states if state.tensor is tensor)

    def _storages(self, put_back: frozenset[int]) -> Storages:
        restored = [state for state in self._states if state.is_restored]
        written = [*self._written, *(state.tensor for state in restored if state.written)]
        return Storages(
            put_back.union([storage_id(state.tensor) for state in restored]) if restored else put_back,
            frozenset([storage_id(tensor) for tensor in written]),
        )

    def rewind(self) -> None:
        """Give the tensors what they had at the call."""
        with unnoticed():
            if self._usual is not None:
                self._take_one_by_one()
            for state in self._states:
                state.enter()
            if self._small is not None:
                self._small.rewind()

    @contextmanager
    def restored(self, name: str, arguments: Sequence[Tensor]) -> Iterator[Storages]:
        """A context in which the tensors have what they had at the call; yields the memory that it restores.

        Raises a StepError, with the function's name, if it has changed what a repetition must not.
        """
        entered: list[tuple[_TensorState, _Present | None]] = []
        small = _NOTHING if self._small is None else self._small.restored(arguments, in_place=self._compiled)
        try:
            with small as put_back:
                with unnoticed():
                    if self._usual is not None and not self._usual.are_as_at_call():
                        self._take_one_by_one()
                    for state in self._states:
                        entered.append((state, state.enter()))
                    storages = self._storages(put_back)
                yield storages
        finally:
            with unnoticed():
                if self._usual is not None and not self._usual.are_as_at_call():
                    entered += [(state, None) for state in self._usual.states()]
                repeats = [state.leave(present) for state, present in entered]
        if not all(repeats):
            raise mutation_error(name, "a parameter or a large tensor that it reaches", "by it, with other numbers")


_NOTHING: nullcontext[frozenset[int]] = nullcontext(frozenset())


def _is_usual(tensor: Tensor) -> bool:
    return type(tensor) in PARAMETERS and tensor.requires_grad and not backward_hooks(tensor) and is_plain(tensor)


def _is_small(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are always copied and held."""
    if type(tensor) in PARAMETERS or tensor.requires_grad or tensor.is_inference() or not is_plain(tensor):
        return False
    return tensor.nbytes <= HELD and tensor.is_contiguous()


def memory_of(tensors: Sequence[Tensor]) -> Memory:
    """The present memory of these tensors, for those that are leaves.

    If a parameter of a loop gets other memory (`.data`) before the backward, it is moved to its former memory while
    steps are recomputed, and is in the present one otherwise: also while a range is pulled back, where plain autograd
    reads the present memory too.
    """
    with unnoticed():  # unnoticed by a loop around this one
        return [tensor.data if tensor.is_leaf and is_plain(tensor) else None for tensor in tensors]


def in_memory(tensors: Sequence[Tensor], memory: Memory) -> AbstractContextManager[None]:
    """A context in which these tensors are in this memory; only tensors that are elsewhere are touched."""
    moved = [
        (tensor, tensor.data, former)
        for tensor, former in zip(tensors, memory, strict=False)  # there is no memory until inputs are found
        if former is not None and not same_memory(tensor, former)
    ]
    return _moved(moved) if moved else nullcontext()


@contextmanager
def _moved(moved: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Iterator[None]:
    try:
        for tensor, _, former in moved:
            set_data(tensor, former, None)
        yield
    finally:
        for tensor, present, _ in moved:
            set_data(tensor, present, None)
