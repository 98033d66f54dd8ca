"""Segments on PyTorch: the ordinary graph is built, and only the tensors that it saves are replaced by holders.

In: a function and its arguments. Out: what it returns. A holder that the backward asks for its tensor lets its segment
run again, which fills all its holders, and stops when they are full. So parameters, hooks and whatever else works on
graphs works as without segments. The arguments are saved outside of the segment's own holders and inside those of a
segment around it: an inner segment keeps nothing while the outer one is first run.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from remat.errors import RematError
from remat.execute.recomputation import StopRecomputation, is_recomputing, recomputing
from remat.execute.segment_rng import SegmentReplay
from remat.frameworks.torch.autocast import AutocastState
from remat.frameworks.torch.detached_cells import DetachedCells
from remat.frameworks.torch.functorch import in_transform
from remat.frameworks.torch.graph import (
    backward_hooks,
    call_after_backward,
    current_backward,
    reachable_leaves,
    version,
)
from remat.frameworks.torch.leaf_state import InputVersion, LeafState, restored_leaf_state
from remat.frameworks.torch.leaves import device_fingerprint, nbytes
from remat.frameworks.torch.saved_tensors import (
    Holder,
    SavedBytes,
    SavedTensorMeta,
    SaveInputs,
    comparable_storage,
    describe,
)
from remat.frameworks.torch.segment_closure import SegmentClosure
from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import segment_pass
from remat.pytree import TreeDef, flatten
from remat.segments import (
    CheckOnce,
    CheckpointOptions,
    display_name,
    mutation_error,
    nested,
    nesting_depth,
    raise_nondeterministic,
)

__all__ = ["CheckpointFrame", "checkpoint"]

_current_frame: ContextVar["CheckpointFrame | None"] = ContextVar(
    "open", default=None
)  # the innermost that is first run
_RECOMPUTE_LOCK = (
    threading.RLock()
)  # random generators, and what is put back for a recomputation, belong to all threads


def checkpoint(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CheckpointOptions,
    call: CallRecord | None = None,
) -> Any:
    """What `fn` returns; what its backward needs is not kept, unless its outputs are within the threshold.

    Without gradients, and inside transforms of torch.func, which allow no holders, it is a plain call.
    """
    if call is not None:
        call.framework, call.steps = "torch", 0
    if not torch.is_grad_enabled() or in_transform():
        if call is not None:
            call.steps = 1
        name, depth = display_name(fn), nesting_depth()
        with segment_pass(name, "forward", depth), nested(depth):
            return fn(*args, **kwargs)
    return CheckpointFrame(fn, args, kwargs, options, call).forward(fn, args, kwargs)


class CheckpointFrame:
    """One call of a function whose saved tensors are not kept; held by the holders that stand for these."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CheckpointOptions,
        call: CallRecord | None,
    ) -> None:
        self.name, self.options, self.call, self.depth = display_name(fn), options, call, nesting_depth()
        simple = not kwargs and all(isinstance(each, Tensor) for each in args)  # the usual case takes no time
        self._tree: TreeDef | None
        leaves, self._tree = (list(args), None) if simple else flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._cells = DetachedCells(fn)
        tensors += self._cells.tensors
        self._cells.tensors = []
        self._handed = len(tensors)
        self._closure = SegmentClosure(self._cells.fn, self._leaves, tensors)
        self._found = self._register(self._closure.tensors, tensors)
        self._closure.tensors = []
        self.holders: list[ReferenceType[Holder]] = []
        self.first_holder: int | None = None  # the holder that is asked last
        self.parent: CheckpointFrame | None = None  # the one around it, if it begins with this one
        self._note_parent(_current_frame.get())
        self._hooks = [backward_hooks(each) for each in tensors]
        self._wanted = [each.requires_grad for each in tensors]
        self._input_versions = [
            InputVersion(each) for each in tensors if not each.requires_grad and not each.is_inference()
        ]
        self._saver = SaveInputs.save(
            [each if each.requires_grad else each.data for each in tensors]
        )  # has a version of its own
        self._autocast = AutocastState()
        self.metas: list[SavedTensorMeta] = []
        self.changing = self._closure.buffers | {comparable_storage(each) for each in tensors if not each.requires_grad}
        self.check = CheckOnce(
            fn, "never" if self._closure.lazy else options.check
        )  # what is made in the first run is used then
        self.saved_bytes = SavedBytes(tensors) if CheckpointProfiler.is_tracking() and not is_recomputing() else None
        self._replay = SegmentReplay(self._closure.replayable_states)
        self._complete, self._holding = False, options.threshold is not None
        self._backward_tasks: dict[
            int, bool
        ] = {}  # backwards, and whether what was computed for them is held until they end
        self._vjp_of, self._recomputed_at = -1, 0.0

    def _register(self, found: list[Tensor], tensors: list[Tensor]) -> list[int]:
        """Add what something made to the tensors that are saved; leaves stand where they are. Where each is then."""
        numbers = {id(tensor): number for number, tensor in enumerate(tensors) if tensor.requires_grad}
        leaf_state: list[Tensor] = []
        places: list[int] = []
        for tensor in found:
            if tensor.requires_grad and not tensor.is_leaf:
                number = numbers.setdefault(id(tensor), len(tensors))
                if number == len(tensors):
                    tensors.append(tensor)
                places.append(number)
            else:
                leaf_state.append(tensor)
                places.append(-len(leaf_state))  # from 1, below zero
        self._leaf_state = LeafState(leaf_state)
        return places

    def _note_parent(self, around: "CheckpointFrame | None") -> None:
        """Note that the segment around this one begins with it, if it does."""
        if around is not None and around.first_holder is None and not around.holders:
            around.first_holder, self.parent = -1, around

    def forward(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function returns; its saved tensors are holders."""
        self._count()
        hooks = saved_tensors_hooks(self._pack, _unpack)
        with segment_pass(self.name, "forward", self.depth), nested(self.depth), _frame_opened(self), hooks:
            out = fn(*args, **kwargs)
        self._complete = True
        self._replay.forget_unused()
        self._leaf_state.finish_forward()
        for given in self._input_versions:
            given.finish_forward()
        for meta in self.metas:
            meta.finish_forward()
        if self._holding:
            self._apply_threshold(out)
        else:
            self._report_saved_bytes(out)
        self.saved_bytes = None
        return out

    def _report_saved_bytes(self, out: Any) -> None:
        """Tell the profiler, if there is one, unless the function has nothing to differentiate."""
        if self.saved_bytes is None:
            return
        leaves = flatten(out)[0]
        if self.holders or any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            CheckpointProfiler.note(self.saved_bytes.without(leaves))

    def _apply_threshold(self, out: Any) -> None:
        """Let the held tensors go if the outputs are larger than the threshold; else they are saved as they are."""
        self._holding = False
        assert self.options.threshold is not None
        if sum(map(nbytes, flatten(out)[0])) > self.options.threshold:
            for each in self._live_holders():
                each.saved = None
            self._report_saved_bytes(out)
            return
        for each in self._live_holders():
            each.save()

    def _pack(self, tensor: Tensor) -> Holder:
        """The holder of a tensor that is saved in the first run."""
        holder = Holder(self, len(self.holders))
        self.holders.append(ref(holder))
        self.metas.append(SavedTensorMeta(tensor, checked=self.check.wanted, changing=self.changing))
        if self.first_holder is None:
            self.first_holder = holder.index
        if self.saved_bytes is not None:
            self.saved_bytes.add(tensor)
        if self._holding:
            holder.saved = tensor.detach()
        return holder

    def _live_holders(self) -> list[Holder]:
        return [holder for each in self.holders if (holder := each()) is not None]

    def unpack(self, holder: Holder) -> Tensor:
        """The tensor of a holder, for one use: it is computed again if it is not there."""
        task = current_backward()
        if self.metas[holder.index].was_written():
            what = f"tensor {holder.index} of the {len(self.metas)} that it saves for its backward"
            raise mutation_error(self.name, what, "by it, after it was saved")
        if holder.saved is None:
            with _RECOMPUTE_LOCK:
                if task not in holder.values:
                    self._recompute(task, holder)
                value = holder.values[task]
                if not self._backward_tasks.get(task, False):
                    del holder.values[task]
        else:
            value = holder.value()
        if holder.index == self.first_holder and task != -1:
            self._note_pullback(task)
        return value

    def _recompute(self, task: int, wanted: Holder) -> None:
        """Fill the holders for one backward; if that was done before, they are held until it ends."""
        holders = {wanted.index: wanted}
        if task != -1:
            if task not in self._backward_tasks:
                call_after_backward(partial(_release_values, ref(self), task))
            self._backward_tasks[task] = task in self._backward_tasks
            holders = {holder.index: holder for holder in self._live_holders()}
        fn, args, kwargs, tensors, found = self._inputs()
        data = [(each, version(each)) for each, wanted, _ in tensors if not wanted and not each.is_inference()]
        changed = self._leaf_state.changed()
        run = Recomputation(self, task, holders, self._closure.buffers, stops=self.options.early_stop and not changed)
        self._count()
        out: Any = None
        with (
            recomputing(True),
            segment_pass(self.name, "recompute", self.depth),
            self._replay.rewound(),
            self._autocast.active(grad=True),
            self._closure.rebind(found),
            restored_leaf_state(tensors),
            self._leaf_state.restored(),
            nested(self.depth),
            _frame_opened(None),
            saved_tensors_hooks(run.pack, _identity),
        ):
            try:
                out = fn(*args, **kwargs)
            except StopRecomputation as stop:
                if stop.args[0] is not run:
                    raise
            except Exception as error:
                error.add_note(f"while the segment {self.name} was recomputed")
                raise
        if changed:
            self._raise_if_used_and_changed(changed, out)
        run.finish(complete=self._complete)
        if any(version(tensor) != before for tensor, before in data):
            raise mutation_error(self.name, "one of its inputs", "by it")
        if self.check.wanted and self._complete and run.count >= len(self.metas):
            self.check.mark_passed()
        self._recomputed_at = perf_counter()

    def _raise_if_used_and_changed(self, changed: list[tuple[Tensor, int]], out: Any) -> None:
        """Raise a StepError if results depend on tensors that were written into."""
        used = reachable_leaves(leaf for leaf in flatten(out)[0] if isinstance(leaf, Tensor))
        for tensor, before in changed:
            if id(tensor) in used:
                what = f"a parameter that it uses ({describe(tensor)}, version {before}, now {version(tensor)})"
                advice = "Call backward before it changes"
                raise mutation_error(self.name, what, "since it was first run", advice)

    def _inputs(self) -> tuple[Callable[..., Any], Any, Any, list[Any], list[Tensor]]:
        """The function, its arguments, what leaves among them were, and the tensors that it finds.

        A segment around this one may have to be run again for them. What something made is handed on without it: hooks
        that the function registers on it are for this run only.
        """
        for each in self._input_versions:
            each.check(self.name)
        try:
            tensors = list(SaveInputs.load(self._saver))
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            what = f"one of its inputs ({str(error).partition(': ')[2].partition(';')[0][:80]})"
            raise mutation_error(self.name, what, "since it was first run, or by the segment itself") from error
        tensors = [each if each.is_leaf else each.detach().requires_grad_() for each in tensors]
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=False):
            leaves[place] = tensor
        args, kwargs = (leaves, {}) if self._tree is None else self._tree.unflatten(leaves)
        found = [tensors[number] if number >= 0 else self._leaf_state.tensors[-number - 1] for number in self._found]
        states = list(zip(tensors, self._wanted, self._hooks, strict=True))
        return self._cells.with_values(tensors[len(self._places) : self._handed]), args, kwargs, states, found

    def _count(self) -> None:
        if self.call is not None and self.call.steps is not None:
            self.call.steps += 1

    def _note_pullback(self, task: int) -> None:
        if self._vjp_of == task:
            return
        self._vjp_of = task
        with segment_pass(self.name, "pullback", self.depth, since=self._recomputed_at or None):
            pass
        if self.parent is not None:
            self.parent._note_pullback(task)


class Recomputation:
    """One recomputation of a segment: fills holders in the order of the first run."""

    def __init__(
        self, segment: CheckpointFrame, task: int, holders: dict[int, Holder], buffers: set[int], *, stops: bool
    ) -> None:
        self.segment, self.task, self.holders, self.stops = segment, task, holders, stops
        self._buffers = buffers
        self.last = max(holders)
        self.count = 0
        self._found: list[tuple[int, Tensor, Tensor]] = []
        self._error: RematError | None = None

    def pack(self, tensor: Tensor) -> Tensor:
        """Put a tensor that is saved again into its holder; when the last one is there, stop."""
        segment, index = self.segment, self.count
        self.count += 1
        value = tensor.detach() if tensor.requires_grad else tensor
        if self._buffers and comparable_storage(tensor) in self._buffers:
            value = value.clone()  # the buffer is what it was before in the end
        if index >= len(segment.metas):
            return value
        try:
            segment.metas[index].compare(tensor, segment.name, index, len(segment.metas))
        except RematError as error:  # raised when the function has ended, since operators make their own of some
            self._error = error
            raise StopRecomputation(self) from None
        holder = self.holders.get(index)
        if holder is not None:
            holder.values[self.task] = value
        if segment.metas[index].fingerprint is not None:
            self._found.append((index, value, device_fingerprint(value)))
        if index == self.last and self.stops:
            raise StopRecomputation(self)
        return value

    def finish(self, *, complete: bool) -> None:
        """Raise a DeterminismError if there were fewer or more tensors than at first, or other ones."""
        if self._error is not None:
            raise self._error
        segment = self.segment
        first_holder = len(segment.metas)
        if self.count <= self.last or (self.count > first_holder and complete):
            raise_nondeterministic(
                segment.name, f"it saved {first_holder} tensors for its backward and then {self.count}"
            )
        SavedTensorMeta.compare_fingerprints(segment.metas, self._found, segment.name)


@contextmanager
def _frame_opened(segment: CheckpointFrame | None) -> Iterator[None]:
    """A block in which this is the innermost segment that is first run."""
    token = _current_frame.set(segment)
    try:
        yield
    finally:
        _current_frame.reset(token)


def _unpack(holder: Holder) -> Tensor:
    return holder.segment.unpack(holder)


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _release_values(segment: "ReferenceType[CheckpointFrame]", task: int) -> None:
    """A backward has ended: what it did not use is let go."""
    found = segment()
    if found is not None:
        found._backward_tasks.pop(task, None)
        for holder in found._live_holders():
            holder.values.pop(task, None)
