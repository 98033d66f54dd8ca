"""Ranges of blocks that run without a tape: only the input of the first block is kept; the others are recomputed.

In: blocks that a model calls one after the other, and a `Range` of a plan. Each call is a segment (checkpoint.py), with
one exception: what a block takes from the block before is not saved. When the backward needs it, the range is
recomputed from its first input according to the plan: the blocks before are recorded, which fills their segments for
this backward, or advanced over, and the inputs of inner ranges are kept for later. So the model's native graph is
unchanged, and between two blocks there may be any code that leaves the tensors between them alone.

    keep 0; advance 0 4; …; fetch 0; advance 0 2 (keeping 0); record 2; record 3; pull back 3, 2; record 0, 1; …

is Range(0, 4, (Range(0, 2, (0, 1)), 2, 3)): the backward needs block 3 first, whose input block 2 makes, and so on.

The rule: block i belongs to the range of block i-1 if the tensors that it takes from block i-1 are unchanged: the same
tensors with the same versions, or views of whole tensors, which hooks of modules make (full backward hooks, FSDP). Then
the input of block i can be recomputed from the range's input. Otherwise block i begins a new range, and its input is
kept: that takes more memory, but the gradient is the same.

The parameters of sharded modules (FSDP2) are gathered while a block is recomputed, and freed afterwards.

What it can miss: a write into a tensor between two blocks that bypasses its version counter.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from remat.execute.nested_ranges import Item, Range
from remat.frameworks.torch.internals.fsdp import gathered
from remat.frameworks.torch.internals.graph import call_after_backward, current_backward, version, view_base
from remat.frameworks.torch.lineage.lineage import Dropped, Lineage
from remat.frameworks.torch.replay.known_reach import ReachCache
from remat.frameworks.torch.segments.checkpoint import CheckpointFrame
from remat.profiling.call_record import CallRecord
from remat.pytree import flatten
from remat.segments import CheckpointOptions

__all__ = ["BlockOutput", "RangeRun", "versions_of"]

State = dict[int, Tensor]  # the tensors that one block passes to the next, by their places in its output
Taken = dict[int, int]  # these places, by the ids of the tensors


class BlockOutput:
    """The output of a block, to find which of its tensors the next block takes.

    `given` are the versions of its arguments before the call, by id. An argument that is only passed on is not part of
    the output, unless the block has `taken` it from the block before, as `nn.Identity` does: then it is recomputed with
    the block.
    """

    def __init__(self, out: Any, given: Mapping[int, int], taken: Taken) -> None:
        self._tensors = {
            _whole(leaf): (ref(view_base(leaf)), version(leaf), place)
            for place, leaf in enumerate(flatten(out)[0])
            if isinstance(leaf, Tensor)
            and not leaf.is_inference()
            and (id(leaf) in taken or given.get(id(leaf)) != version(leaf))
        }

    def taken_by(self, arguments: Iterable[Any]) -> Taken:
        """The tensors of the output among these arguments; none if one of them was written into since."""
        taken: Taken = {}
        for leaf in arguments:
            known = self._tensors.get(_whole(leaf)) if isinstance(leaf, Tensor) else None
            if known is not None and known[0]() is view_base(leaf):
                if version(leaf) != known[1]:
                    return {}
                taken[id(leaf)] = known[2]
        return taken


def _whole(tensor: Tensor) -> Hashable:
    """A key that is equal for tensors that are the same elements of the same memory."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return id(view_base(tensor)), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def _no_lineage() -> None:
    return None


def versions_of(arguments: Iterable[Any]) -> dict[int, int]:
    """The versions of the tensors among arguments, by id."""
    return {id(leaf): version(leaf) for leaf in arguments if isinstance(leaf, Tensor) and not leaf.is_inference()}


class RangeRun:
    """One forward through the blocks of a range, and the backwards through it.

    Each frame refers to the one before, so that the frames needed to recompute an input are alive; the range's input is
    freed with the last of them, as that of a segment is.
    """

    def __init__(self, item: Range, sharded: Sequence[Sequence[nn.Module]] = ()) -> None:
        self.item, self._sharded = item, sharded  # for each call of a block, the sharded modules with its parameters
        self._frames: dict[int, ReferenceType[CheckpointFrame]] = {}
        self._places: dict[int, frozenset[int]] = {}  # by block: the places that it takes in the output before it
        self._held: dict[int, dict[int, State]] = {}  # by backward, by block: inputs in use, or of inner ranges
        self._newest: CheckpointFrame | None = None
        self._running = -1  # the block that the range is recomputing

    def has(self, block: int) -> bool:
        """Whether the block ran as a segment of this range, and can be recomputed."""
        frame = self._frames[block]() if block in self._frames else None
        return frame is not None and frame._complete

    def newest_frame(self) -> CheckpointFrame | None:
        """The newest frame, which the caller must hold until the next block's frame refers to it.

        The graph does not hold the frame of a block in which nothing requires a gradient.
        """
        newest, self._newest = self._newest, None
        return newest

    def frame_of(
        self, block: int, taken: Taken, dropped: Dropped | None = None, cache: ReachCache | None = None
    ) -> Callable[..., CheckpointFrame]:
        """A function that makes the frame for the call of a block, which takes these tensors from the block before.

        When the block is recorded, `dropped` results are not held either. `cache` has what the block reaches.
        """
        sharded = self._sharded[block] if self._sharded else ()
        lineage = partial(Lineage, dropped, sharded) if dropped else _no_lineage
        before = self._frames[block - 1]() if block > self.item.start else None
        source = None if before is None else _FromBlockBefore(self, block, taken, before)
        self._places[block] = frozenset(taken.values())

        def frame(
            fn: Callable[..., Any],
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
            options: CheckpointOptions,
            call: CallRecord | None,
        ) -> CheckpointFrame:
            self._newest = made = CheckpointFrame(fn, args, kwargs, options, call, source, lineage, cache)
            self._frames[block] = ref(made)
            return made

        return frame

    def input_of(self, block: int) -> State:
        """The tensors that a block took from the block before, recomputed unless they are held for this backward."""
        task = current_backward()
        if task not in self._held:
            self._held[task] = {}
            if task != -1:
                call_after_backward(partial(_forget, ref(self), task))
        held = self._held[task]
        if block == self._running:
            return held[block]
        if block not in held:
            self._run_to(block, task, held)
        return held.pop(block) if task != -1 else self._held.pop(task)[block]

    def _run_to(self, block: int, task: int, held: dict[int, State]) -> None:
        """Run the range according to the plan until the input of the block is computed."""
        around = list(_around(self.item, block))
        # The innermost range whose input is held; that of the outermost range is in its first segment.
        first = next((at for at in reversed(range(len(around))) if around[at].start in held), 0)
        for part in around[first:]:
            for item in part.items:
                if _is_in(block, item):
                    break
                if isinstance(item, Range):
                    self._advance(item, held)
                else:
                    self._record(item, task, held)

    def _advance(self, item: Range, held: dict[int, State]) -> None:
        for block in range(item.start, item.stop):
            held[block + 1] = self._run(block)
            if block > item.start:
                del held[block]

    def _record(self, block: int, task: int, held: dict[int, State]) -> None:
        held[block + 1] = self._run(block, None if task == -1 else task)
        held.pop(block, None)

    def _run(self, block: int, task: int | None = None) -> State:
        """Recompute a block, recording it if a backward is given; return the tensors that the next block takes."""
        frame = self._frames[block]()
        assert frame is not None, "frames hold those before them"
        before, self._running = self._running, block
        try:
            with gathered(self._sharded[block] if self._sharded else ()):
                leaves = flatten(frame.run_again(task))[0]
        finally:
            self._running = before
        return {place: leaves[place].detach() for place in self._places[block + 1]}


class _FromBlockBefore:
    """The tensors that a block takes from the one before, among its arguments."""

    def __init__(self, run: RangeRun, block: int, taken: Taken, before: CheckpointFrame) -> None:
        self._run, self._block, self._taken, self._before = run, block, taken, before

    def place_of(self, tensor: Tensor) -> int | None:
        """The place of the tensor in the output of the block before, if it comes from there."""
        return self._taken.get(id(tensor))

    def load(self) -> State:
        """The tensors, by their places."""
        return self._run.input_of(self._block)


def _around(item: Range, block: int) -> Iterator[Range]:
    """The nested ranges that contain a block, outermost first."""
    yield item
    for inner in item.items:
        if isinstance(inner, Range) and _is_in(block, inner):
            yield from _around(inner, block)


def _is_in(block: int, item: Item) -> bool:
    return item.start <= block < item.stop if isinstance(item, Range) else item == block


def _forget(reference: ReferenceType[RangeRun], task: int) -> None:
    """Drop the inputs that a backward, which has ended, did not use."""
    run = reference()
    if run is not None:
        run._held.pop(task, None)
