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
from remat.execute.recomputation import EarlyStop, is_recomputing, recomputing
from remat.execute.segment_rng import Start
from remat.frameworks.torch.autocast import Modes
from remat.frameworks.torch.detached_cells import Lifted
from remat.frameworks.torch.leaf_state import Given, Standing, as_they_were, leaves_used
from remat.frameworks.torch.leaves import late_summary, nbytes
from remat.frameworks.torch.saved_tensors import Holder, Looks, Saver, Weight, address, shown
from remat.frameworks.torch.segment_closure import Drawn
from remat.profiling.call_record import Call
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import passing
from remat.pytree import Tree, take_apart
from remat.segments import (
    Check,
    Terms,
    depth_here,
    name_of,
    refuse_change,
    refuse_writing,
    within,
)

__all__ = ["Segment", "checkpoint"]

_open: ContextVar["Segment | None"] = ContextVar("open", default=None)  # the innermost that is first run
_ONE_AT_A_TIME = threading.RLock()  # random generators, and what is put back for a recomputation, belong to all threads


def checkpoint(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms, call: Call | None = None
) -> Any:
    """What `fn` returns; what its backward needs is not kept, unless its outputs are within the threshold.

    Without gradients, and inside transforms of torch.func, which allow no holders, it is a plain call.
    """
    if call is not None:
        call.framework, call.steps = "torch", 0
    if not torch.is_grad_enabled() or torch._C._functorch.maybe_current_level() is not None:
        if call is not None:
            call.steps = 1
        name, depth = name_of(fn), depth_here()
        with passing(name, "forward", depth), within(depth):
            return fn(*args, **kwargs)
    return Segment(fn, args, kwargs, terms, call).first_run(fn, args, kwargs)


class Segment:
    """One call of a function whose saved tensors are not kept; held by the holders that stand for these."""

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms, call: Call | None
    ) -> None:
        self.name, self.terms, self.call, self.depth = name_of(fn), terms, call, depth_here()
        simple = not kwargs and all(isinstance(each, Tensor) for each in args)  # the usual case takes no time
        self._tree: Tree | None
        leaves, self._tree = (list(args), None) if simple else take_apart((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._lifted = Lifted(fn)
        tensors += self._lifted.tensors
        self._lifted.tensors = []
        self._handed = len(tensors)
        self._drawn = Drawn(self._lifted.fn, self._leaves, tensors)
        self._found = self._take(self._drawn.tensors, tensors)
        self._drawn.tensors = []
        self.holders: list[ReferenceType[Holder]] = []
        self.first: int | None = None  # the holder that is asked last
        self.before: Segment | None = None  # the one around it, if it begins with this one
        self._join(_open.get())
        self._hooks = [dict(each._backward_hooks) if each._backward_hooks else None for each in tensors]
        self._wanted = [each.requires_grad for each in tensors]
        self._given = [Given(each) for each in tensors if not each.requires_grad and not each.is_inference()]
        self._saver = Saver.keep(
            [each if each.requires_grad else each.data for each in tensors]
        )  # has a version of its own
        self._modes = Modes()
        self.looks: list[Looks] = []
        self.changing = self._drawn.buffers | {address(each) for each in tensors if not each.requires_grad}
        self.check = Check(
            fn, "never" if self._drawn.lazy else terms.check
        )  # what is made in the first run is used then
        self.weight = Weight(tensors) if CheckpointProfiler.is_tracking() and not is_recomputing() else None
        self._start = Start(self._drawn.sources)
        self._complete, self._holding = False, terms.threshold is not None
        self._tasks: dict[int, bool] = {}  # backwards, and whether what was computed for them is held until they end
        self._pulled, self._since = -1, 0.0

    def _take(self, found: list[Tensor], tensors: list[Tensor]) -> list[int]:
        """Add what something made to the tensors that are saved; leaves stand where they are. Where each is then."""
        numbers = {id(tensor): number for number, tensor in enumerate(tensors) if tensor.requires_grad}
        standing: list[Tensor] = []
        places: list[int] = []
        for tensor in found:
            if tensor.requires_grad and not tensor.is_leaf:
                number = numbers.setdefault(id(tensor), len(tensors))
                if number == len(tensors):
                    tensors.append(tensor)
                places.append(number)
            else:
                standing.append(tensor)
                places.append(-len(standing))  # from 1, below zero
        self._standing = Standing(standing)
        return places

    def _join(self, around: "Segment | None") -> None:
        """Note that the segment around this one begins with it, if it does."""
        if around is not None and around.first is None and not around.holders:
            around.first, self.before = -1, around

    def first_run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function returns; its saved tensors are holders."""
        self._count()
        hooks = saved_tensors_hooks(self._pack, _unpack)
        with passing(self.name, "forward", self.depth), within(self.depth), _opened(self), hooks:
            out = fn(*args, **kwargs)
        self._complete = True
        self._start.settle()
        self._standing.settle()
        for given in self._given:
            given.settle()
        for look in self.looks:
            look.settle()
        if self._holding:
            self._decide(out)
        else:
            self._note_weight(out)
        self.weight = None
        return out

    def _note_weight(self, out: Any) -> None:
        """Tell the profiler, if there is one, unless the function has nothing to differentiate."""
        if self.weight is None:
            return
        leaves = take_apart(out)[0]
        if self.holders or any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            CheckpointProfiler.note(self.weight.without(leaves))

    def _decide(self, out: Any) -> None:
        """Let the held tensors go if the outputs are larger than the threshold; else they are saved as they are."""
        self._holding = False
        assert self.terms.threshold is not None
        if sum(map(nbytes, take_apart(out)[0])) > self.terms.threshold:
            for each in self._live():
                each.saved = None
            self._note_weight(out)
            return
        for each in self._live():
            each.keep()

    def _pack(self, tensor: Tensor) -> Holder:
        """The holder of a tensor that is saved in the first run."""
        holder = Holder(self, len(self.holders))
        self.holders.append(ref(holder))
        self.looks.append(Looks(tensor, checked=self.check.wanted, changing=self.changing))
        if self.first is None:
            self.first = holder.index
        if self.weight is not None:
            self.weight.add(tensor)
        if self._holding:
            holder.saved = tensor.detach()
        return holder

    def _live(self) -> list[Holder]:
        return [holder for each in self.holders if (holder := each()) is not None]

    def value_of(self, holder: Holder) -> Tensor:
        """The tensor of a holder, for one use: it is computed again if it is not there."""
        task = torch._C._current_graph_task_id()  # -1 outside of a backward
        if self.looks[holder.index].look_again():
            what = f"tensor {holder.index} of the {len(self.looks)} that it saves for its backward"
            raise refuse_writing(self.name, what, "by it, after it was saved")
        if holder.saved is None:
            with _ONE_AT_A_TIME:
                if task not in holder.values:
                    self._recompute(task, holder)
                value = holder.values[task]
                if not self._tasks.get(task, False):
                    del holder.values[task]
        else:
            value = holder.value()
        if holder.index == self.first and task != -1:
            self._note_pullback(task)
        return value

    def _recompute(self, task: int, wanted: Holder) -> None:
        """Fill the holders for one backward; if that was done before, they are held until it ends."""
        holders = {wanted.index: wanted}
        if task != -1:
            if task not in self._tasks:
                torch.autograd.Variable._execution_engine.queue_callback(partial(_forget, ref(self), task))
            self._tasks[task] = task in self._tasks
            holders = {holder.index: holder for holder in self._live()}
        fn, args, kwargs, tensors, found = self._inputs()
        data = [(each, each._version) for each, wanted, _ in tensors if not wanted and not each.is_inference()]
        changed = self._standing.changed()
        run = Again(self, task, holders, self._drawn.buffers, stops=self.terms.early_stop and not changed)
        self._count()
        out: Any = None
        with (
            recomputing(True),
            passing(self.name, "recompute", self.depth),
            self._start.again(),
            self._modes.on(grad=True),
            self._drawn.bind(found),
            as_they_were(tensors),
            self._standing.again(),
            within(self.depth),
            _opened(None),
            saved_tensors_hooks(run.pack, _as_it_is),
        ):
            try:
                out = fn(*args, **kwargs)
            except EarlyStop as stop:
                if stop.args[0] is not run:
                    raise
            except Exception as error:
                error.add_note(f"while the segment {self.name} was recomputed")
                raise
        if changed:
            self._refuse_used(changed, out)
        run.finish(complete=self._complete)
        if any(tensor._version != version for tensor, version in data):
            raise refuse_writing(self.name, "one of its inputs", "by it")
        if self.check.wanted and self._complete and run.count >= len(self.looks):
            self.check.passed()
        self._since = perf_counter()

    def _refuse_used(self, changed: list[tuple[Tensor, int]], out: Any) -> None:
        """Raise a StepError if results depend on tensors that were written into."""
        used = leaves_used(out)
        for tensor, version in changed:
            if id(tensor) in used:
                what = f"a parameter that it uses ({shown(tensor)}, version {version}, now {tensor._version})"
                advice = "Call backward before it changes"
                raise refuse_writing(self.name, what, "since it was first run", advice)

    def _inputs(self) -> tuple[Callable[..., Any], Any, Any, list[Any], list[Tensor]]:
        """The function, its arguments, what leaves among them were, and the tensors that it finds.

        A segment around this one may have to be run again for them. What something made is handed on without it: hooks
        that the function registers on it are for this run only.
        """
        for each in self._given:
            each.check(self.name)
        try:
            tensors = list(Saver.kept(self._saver))
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            what = f"one of its inputs ({str(error).partition(': ')[2].partition(';')[0][:80]})"
            raise refuse_writing(self.name, what, "since it was first run, or by the segment itself") from error
        tensors = [each if each.is_leaf else each.detach().requires_grad_() for each in tensors]
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=False):
            leaves[place] = tensor
        args, kwargs = (leaves, {}) if self._tree is None else self._tree.build(leaves)
        found = [tensors[number] if number >= 0 else self._standing.tensors[-number - 1] for number in self._found]
        states = list(zip(tensors, self._wanted, self._hooks, strict=True))
        return self._lifted.filled(tensors[len(self._places) : self._handed]), args, kwargs, states, found

    def _count(self) -> None:
        if self.call is not None and self.call.steps is not None:
            self.call.steps += 1

    def _note_pullback(self, task: int) -> None:
        if self._pulled == task:
            return
        self._pulled = task
        with passing(self.name, "pullback", self.depth, since=self._since or None):
            pass
        if self.before is not None:
            self.before._note_pullback(task)


class Again:
    """One recomputation of a segment: fills holders in the order of the first run."""

    def __init__(
        self, segment: Segment, task: int, holders: dict[int, Holder], buffers: set[int], *, stops: bool
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
        if self._buffers and address(tensor) in self._buffers:
            value = value.clone()  # the buffer is what it was before in the end
        if index >= len(segment.looks):
            return value
        try:
            segment.looks[index].compare(tensor, segment.name, index, len(segment.looks))
        except RematError as error:  # raised when the function has ended, since operators make their own of some
            self._error = error
            raise EarlyStop(self) from None
        holder = self.holders.get(index)
        if holder is not None:
            holder.values[self.task] = value
        if segment.looks[index].noted is not None:
            self._found.append((index, value, late_summary(value)))
        if index == self.last and self.stops:
            raise EarlyStop(self)
        return value

    def finish(self, *, complete: bool) -> None:
        """Raise a DeterminismError if there were fewer or more tensors than at first, or other ones."""
        if self._error is not None:
            raise self._error
        segment = self.segment
        first = len(segment.looks)
        if self.count <= self.last or (self.count > first and complete):
            refuse_change(segment.name, f"it saved {first} tensors for its backward and then {self.count}")
        Looks.compare_values(segment.looks, self._found, segment.name)


@contextmanager
def _opened(segment: Segment | None) -> Iterator[None]:
    """A block in which this is the innermost segment that is first run."""
    token = _open.set(segment)
    try:
        yield
    finally:
        _open.reset(token)


def _unpack(holder: Holder) -> Tensor:
    return holder.segment.value_of(holder)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _forget(segment: "ReferenceType[Segment]", task: int) -> None:
    """A backward has ended: what it did not use is let go."""
    found = segment()
    if found is not None:
        found._tasks.pop(task, None)
        for holder in found._live():
            holder.values.pop(task, None)
