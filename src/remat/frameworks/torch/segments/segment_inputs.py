"""The inputs of a segment: its arguments, tensors in its function's cells, and captured tensors with a graph.

Each tensor is an input once, however often it is passed, so that one object stays one object. Inputs are saved as any
node saves tensors (`SaveInputs`): an enclosing segment may drop them, and brings them back by its own recomputation.

The segment itself may write into an input without a gradient, such as a cache, or into one with a graph in a container
or a variable, such as a sum of losses. Then the recomputation gets a new tensor with the numbers at the call, provided
that they were copied, which they are up to COPIED bytes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor

from remat.frameworks.torch.internals.graph import backward_hooks, leaf_itself, set_backward_hooks, version
from remat.frameworks.torch.internals.saved_tensor_hooks import has_saved_tensor_hooks
from remat.frameworks.torch.replay.detached_cells import DetachedCells
from remat.frameworks.torch.replay.input_versions import was_written_into
from remat.frameworks.torch.replay.shared_containers import SharedContainers
from remat.frameworks.torch.replay.tensor_value import COPIED, is_plain
from remat.frameworks.torch.replay.watch import unnoticed
from remat.frameworks.torch.segments.saved_tensors import SaveInputs, made_again
from remat.pytree import TreeDef, flatten
from remat.segments import mutation_error

__all__ = ["LoadedInputs", "RecomputedInputs", "SegmentInputs"]


class RecomputedInputs(Protocol):
    """Tensors among the arguments that are not saved, because they can be recomputed from what others save."""

    def place_of(self, tensor: Tensor) -> int | None:
        """The tensor's key in what `load` returns, if it is one of them."""

    def load(self) -> Mapping[int, Tensor]:
        """All of them, by key."""


class LoadedInputs(NamedTuple):
    """A function and its arguments, ready to run again."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    tensors: Sequence[Tensor]
    flags: Sequence[tuple[Tensor, bool, Mapping[int, Any]]]  # of the leaves: requires_grad and hooks at the call
    data: Sequence[Tensor]  # those without a gradient
    shared: Sequence[Tensor]  # those of `data` that are in the caller's memory
    copied: Collection[int]  # the indices of captured tensors that the first run has written into


class SegmentInputs:
    """The inputs of one call, in the order in which they were added; `save` releases them."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        recomputed: RecomputedInputs | None = None,
    ) -> None:
        self._recomputed = recomputed
        while isinstance(fn, partial):  # so that its arguments are inputs too
            args, kwargs = fn.args + args, {**fn.keywords, **kwargs}
            fn = fn.func
        self._tree: TreeDef | None
        only_tensors = not kwargs and all(isinstance(arg, Tensor) for arg in args)  # nothing to flatten, the usual case
        leaves, self._tree = (list(args), None) if only_tensors else flatten((args, kwargs))
        self._shared = SharedContainers(() if only_tensors else (list(args), kwargs))
        self._indices: dict[int, int] = {}
        self._captured: dict[int, ref[Tensor]] = {}
        self.tensors: list[Tensor] = []
        self._at = [self.add(leaf) if isinstance(leaf, Tensor) else None for leaf in leaves]
        self.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]  # arguments that are not tensors
        self._cells = DetachedCells(fn)
        self._cells_at = [self.add(tensor) for tensor in self._cells.take_tensors()]
        self.fn = self._cells.fn

    def add(self, tensor: Tensor) -> int:
        """The index of a tensor among the inputs, to which it is added if it is new."""
        # By identity: a tensor that is passed twice, or is also closed over, is one input of the recomputation too.
        index = self._indices.setdefault(id(tensor), len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(tensor)
        return index

    def add_captured(self, tensor: Tensor) -> int:
        """The index of a tensor with a graph that the function reaches other than through its own cells.

        A recomputation leaves references to it alone as long as the tensor lives. So it must be the same object
        everywhere, also as an argument.
        """
        index = self.add(tensor)
        self._captured[index] = ref(tensor)
        return index

    def share(self, known: Callable[[], Collection[int]]) -> None:
        """Let the recomputation's arguments be, or contain, the caller's own containers where their ids are `known`."""
        self._shared.restrict_to(known)

    def save(self) -> list[Tensor]:
        """Save the inputs, after the last one was added, and return them."""
        inputs, self.tensors, self._indices = self.tensors, [], {}
        self._inside = has_saved_tensor_hooks()
        self._required_grad = [tensor.requires_grad for tensor in inputs]
        self._hooks = [backward_hooks(tensor) for tensor in inputs]
        places = [] if self._recomputed is None else [self._recomputed.place_of(tensor) for tensor in inputs]
        self._later = {at: place for at, place in enumerate(places) if place is not None}
        self._later_versions = {at: (ref(inputs[at]), version(inputs[at])) for at in self._later}
        self._written: list[int] = []
        self._data = [
            None if tensor.requires_grad or at in self._later else _Data(tensor) for at, tensor in enumerate(inputs)
        ]
        # Each in a node of its own: if one was modified, autograd refuses to load everything saved with it.
        self._sums = {at: _Sum(inputs[at]) for at in self._captured if at not in self._later and is_plain(inputs[at])}
        # `.data` has its own version: the segment may write into an input without a gradient in its first run.
        apart = {*self._later, *self._sums}
        self._saved = SaveInputs.save(
            [t if t.requires_grad else t.data for at, t in enumerate(inputs) if at not in apart]
        )
        return inputs

    def finish_forward(self) -> None:
        """Note which of the writable inputs the first run has written into; called after that run."""
        self._written = [at for at, (tensor, then) in self._later_versions.items() if _is_written(tensor(), then)]
        for each in (*self._data, *self._sums.values()):
            if each is not None:
                each.finish_forward()

    def rewind(self, inputs: Sequence[Tensor]) -> None:
        """Undo what a failed first run wrote into the inputs, and remove its hooks from them."""
        for tensor, data, hooks in zip(inputs, self._data, self._hooks, strict=True):
            if data is not None:
                data.rewind(tensor)
            set_backward_hooks(tensor, hooks)

    def load(self, name: str) -> LoadedInputs:
        """Load the inputs, for which an enclosing segment may have to be recomputed.

        Inputs with a graph are new tensors, so that hooks which the function registers on them last for one
        recomputation.
        """
        for data in self._data:
            if data is not None:
                data.check(name)
        try:
            saved = list(SaveInputs.load(self._saved))
            apart = {at: each.load() for at, each in self._sums.items()}
        except RuntimeError as error:
            if not was_written_into(error):
                raise
            what = f"one of its inputs ({str(error).partition(': ')[2].partition(';')[0][:80]})"
            raise mutation_error(name, what, "since it was first run, or by the segment itself") from error
        if self._recomputed is not None:
            again = self._recomputed.load()
            apart |= {at: again[place] for at, place in self._later.items()}
        # In ascending order, so that each is inserted at its final index.
        for at in sorted(apart):
            saved.insert(at, apart[at])
        copied = {at for at, each in self._sums.items() if each.is_written}
        tensors = [
            data.again(tensor) if data is not None else tensor if index in copied else self._again(index, tensor)
            for index, (tensor, data) in enumerate(zip(saved, self._data, strict=True))
        ]
        leaves = [other if at is None else tensors[at] for at, other in zip(self._at, self.others, strict=True)]
        args, kwargs = (leaves, {}) if self._tree is None else self._tree.unflatten(leaves)
        args, kwargs = self._shared.put_into(args, kwargs)
        return LoadedInputs(
            self._cells.with_values([tensors[at] for at in self._cells_at]),
            args,
            kwargs,
            tensors,
            [
                each
                for each in zip(tensors, self._required_grad, self._hooks, strict=True)
                if each[0].is_leaf and each[1]
            ],
            [tensor for tensor, data in zip(tensors, self._data, strict=True) if data is not None],
            [tensor for tensor, data in zip(tensors, self._data, strict=True) if data is not None and data.is_shared],
            copied,
        )

    def _again(self, index: int, tensor: Tensor) -> Tensor:
        """An input with a gradient, or one that was recomputed, as it goes into a recomputation."""
        if index in self._later:
            again = made_again(tensor) if self._required_grad[index] else tensor
            with torch.enable_grad():  # neither leaf nor view, since both refuse to be written into
                return again.clone() if index in self._written else again
        if tensor.is_leaf:  # it may also be in a container; inside another segment a copy was saved
            return leaf_itself(tensor) if self._inside else tensor
        captured = self._captured.get(index)
        original = None if captured is None else captured()
        return made_again(tensor) if original is None else original


def _is_written(tensor: Tensor | None, before: int) -> bool:
    return tensor is not None and version(tensor) != before


class _Sum:
    """A captured tensor with a graph into which the segment may write, such as a sum of losses."""

    __slots__ = ("_numbers", "_saved", "_tensor", "_version", "is_written")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version, self.is_written = ref(tensor), version(tensor), False
        self._saved = SaveInputs.save([tensor])
        self._numbers = tensor.detach().clone() if tensor.nbytes <= COPIED else None

    def finish_forward(self) -> None:
        """Note whether the first run has written into it, and keep either the tensor or its copy."""
        tensor = self._tensor()
        self.is_written = self._numbers is not None and tensor is not None and version(tensor) != self._version
        if self.is_written:
            self._saved = None
        else:
            self._numbers = None

    def load(self) -> Tensor:
        """The tensor, or a new one with the numbers that it had at the call."""
        if not self.is_written or self._numbers is None:
            return SaveInputs.load(self._saved)[0]
        with torch.enable_grad():  # neither leaf nor view, since both refuse to be written into
            return made_again(self._numbers).clone()


class _Data:
    """An input without a gradient, into which only the segment itself may write."""

    __slots__ = ("_finished", "_numbers", "_tensor", "_version", "_writes")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._writes, self._finished = ref(tensor), False, False
        self._version = version(tensor)
        with unnoticed():
            is_copied = is_plain(tensor) and tensor.nbytes <= COPIED
            self._numbers = tensor.detach().clone() if is_copied else None

    def finish_forward(self) -> None:
        """Note whether the first run has written into it; if not, drop the copy."""
        self._writes, self._finished = self._written(), True
        if not self._writes:
            self._numbers = None

    @property
    def is_shared(self) -> bool:
        """Whether the recomputation uses the caller's memory, and therefore must not write."""
        return self._numbers is None

    def _written(self) -> bool:
        tensor = self._tensor()
        return tensor is not None and version(tensor) != self._version

    def rewind(self, tensor: Tensor) -> None:
        """Restore the numbers at the call, if they were copied."""
        if self._numbers is not None and self._written():
            tensor.data.copy_(self._numbers)

    def again(self, tensor: Tensor) -> Tensor:
        """The tensor for a recomputation: the saved one, or a copy with its numbers at the call."""
        return tensor if self._numbers is None else self._numbers.clone()

    def check(self, name: str) -> None:
        """Raise a StepError if anyone but the segment has written into it since the first run."""
        tensor = self._tensor()
        if not self._finished and self._numbers is not None:
            return  # the segment differentiates itself, and nothing else has run so far
        if tensor is not None and not self._writes and self._written():
            what = f"one of its inputs (version {self._version}, now {version(tensor)})"
            raise mutation_error(name, what, "since it was first run")
