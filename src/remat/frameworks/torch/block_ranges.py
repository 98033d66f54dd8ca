"""Ranges of blocks that run without a tape: the input of the first one is kept, and the others are computed again.

In: blocks that a model calls one after the other, and a `Range` of a plan. Each call is a segment (checkpoint.py), with
one exception: what a block gets from the one before is not saved. When the backward asks for it, the range is run as
the plan has it: from its first input, blocks that come before are recorded, which fills their segments for this
backward, or advanced over, with the inputs of inner ranges kept for later. So the native graph of the model stays as it
is, and anything may stand between two blocks that leaves the tensors alone which go from one to the next.

    keep 0; advance 0 4; …; fetch 0; advance 0 2 (keeping 0); record 2; record 3; pull back 3, 2; record 0, 1; …

is Range(0, 4, (Range(0, 2, (0, 1)), 2, 3)): the backward asks block 3 first, whose input block 2 makes, and so on.

The rule: block i belongs to the range of block i-1 if all that block i-1 made and block i takes is unchanged: the same
tensors, with the same versions, or views of them as a whole, which hooks of modules make (full backward hooks, FSDP).
Then the input of block i can be computed from the range's input. Otherwise block i begins a range of its own, and its
input is kept: more memory, never another gradient.

The parameters of sharded modules (FSDP2) are gathered for a block that runs again, and freed again.

What it can miss: a tensor that is written into behind its version counter, between two blocks.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from remat.execute.nested_ranges import Item, Range
from remat.frameworks.torch.checkpoint import CheckpointFrame
from remat.frameworks.torch.fsdp import gathered
from remat.frameworks.torch.graph import call_after_backward, current_backward, version, view_base
from remat.frameworks.torch.known_reach import ReachCache
from remat.frameworks.torch.lineage import Dropped, Lineage
from remat.profiling.call_record import CallRecord
from remat.pytree import flatten
from remat.segments import CheckpointOptions

__all__ = ["BlockOutput", "RangeRun", "versions_of"]

State = dict[int, Tensor]  # the tensors that one block hands to the next, by their places in the output
Taken = dict[int, int]  # the same places, by the ids of the tensors


class BlockOutput:
    """What a block has returned, to see which of its tensors another block takes.

    `given` are the versions of its arguments before, by id: those that it only hands on are not its own, but for those
    that it has `taken` from the block before, as `nn.Identity` does: they are computed again with it.
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
        """The tensors that are among these arguments; none if one of them was written into since."""
        taken: Taken = {}
        for leaf in arguments:
            known = self._tensors.get(_whole(leaf)) if isinstance(leaf, Tensor) else None
            if known is not None and known[0]() is view_base(leaf):
                if version(leaf) != known[1]:
                    return {}
                taken[id(leaf)] = known[2]
        return taken


def _whole(tensor: Tensor) -> Hashable:
    """What tensors have in common that are the same numbers in the same memory."""
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

    Frames refer to those before them, so that one which is needed to compute an input again is there, and the range's
    input is let go with the last of them, as that of a segment is.
    """

    def __init__(self, item: Range, sharded: Sequence[Sequence[nn.Module]] = ()) -> None:
        self.item, self._sharded = item, sharded  # for each call of a block, the sharded modules with its parameters
        self._frames: dict[int, ReferenceType[CheckpointFrame]] = {}
        self._places: dict[int, frozenset[int]] = {}  # in the output of the block before, of what a block takes
        self._held: dict[int, dict[int, State]] = {}  # by backward: inputs of blocks, now in use or of ranges inside
        self._newest: CheckpointFrame | None = None
        self._running = -1  # the block that is run by the range itself

    def has(self, block: int) -> bool:
        """Whether the block ran as a segment of this range, and can run again."""
        frame = self._frames[block]() if block in self._frames else None
        return frame is not None and frame._complete

    def newest_frame(self) -> CheckpointFrame | None:
        """The frame that was made last; it is the caller's to hold until the next block has one, which refers to it.

        A frame without holders, of a block in which nothing wants a gradient, is not held by the graph.
        """
        newest, self._newest = self._newest, None
        return newest

    def frame_of(
        self, block: int, taken: Taken, dropped: Dropped | None = None, cache: ReachCache | None = None
    ) -> Callable[..., CheckpointFrame]:
        """What makes the frame for the call of a block, which takes these tensors from the block before.

        When it is recorded, what is `dropped` is not held either. A `cache` has what the block reaches.
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
        """What a block took from the one before; computed again, unless it is held for the backward that asks."""
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
        """Run the range as the plan has it until the input of the block is there."""
        around = list(_around(self.item, block))
        # The innermost range whose input is there; that of the outermost is in its first segment.
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
        """What the next block takes of what a block returns; it is recorded for a backward, if one is given."""
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
    """The ranges that a block is in, from the outside to the inside."""
    yield item
    for inner in item.items:
        if isinstance(inner, Range) and _is_in(block, inner):
            yield from _around(inner, block)


def _is_in(block: int, item: Item) -> bool:
    return item.start <= block < item.stop if isinstance(item, Range) else item == block


def _forget(reference: ReferenceType[RangeRun], task: int) -> None:
    """Drop what a backward, which has ended, did not use."""
    run = reference()
    if run is not None:
        run._held.pop(task, None)
