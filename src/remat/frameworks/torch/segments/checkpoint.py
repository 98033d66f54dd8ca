"""Segments on PyTorch: the ordinary graph is built, with holders in place of the tensors that it saves.

In: a function and its arguments. Out: what it returns. When the backward asks a holder for its tensor, the segment is
recomputed, which fills all its holders and stops when they are full. Parameters, hooks, DDP and everything else that
works on graphs works as without segments. The rules, in the style of the note in torch.utils.checkpoint:

Rule 1. A saved tensor belongs to the innermost segment.

    def inner(x): return x.sin().cos()          # saves x and sin(x): two holders of `inner`
    def outer(x): return checkpoint(inner, x.exp()).tanh()

`outer` has holders for exp(x), which exp saves, for the input of `inner` (rule 2), and for the result of tanh.

Rule 2. The inputs of a segment are saved outside of its own holders, and inside those of an enclosing segment.

`SaveInputs` is a node that saves the arguments, and closed-over tensors with a graph, before the hooks of the segment
are active; each once, so that `attention(x, x, x)` gets one object again. Without an enclosing segment they are kept as
by any node; with one they are its holders, so that an inner segment keeps nothing alive after the forward of the outer
one. Filling a holder of `inner` loads its inputs, which asks a holder of `outer`, which recomputes `outer` first.
Parameters are not inputs: they are used as they are, with the flags and hooks that they had.

Rule 3. A recomputation starts as if no segment were active; segments inside it are segments again.

While `outer` is recomputed, `inner` is called again: its new inputs fill the holder of rule 2, and what it saves inside
goes to new holders of its own, which die with the recomputed graph.

Rule 4. A recomputation stops at the last tensor that can still be asked for.

In `x.exp().sum()` nothing is saved after exp, so sum is not run again. A holder whose node is freed is not waited for.
The recomputation runs to its end with `early_stop=False`, and also if a parameter was modified since the first run:
only a complete graph shows whether the outputs depend on it, which is an error.

Rule 5. A recomputed tensor belongs to one backward, and is handed out once.

    y.backward(retain_graph=True); y.backward()         # two backwards: two recomputations

Values are stored by the id of the backward and dropped when they are taken, so that memory falls as the backward
proceeds. A node that asks twice, such as a custom Function that reads `ctx.saved_tensors` twice, causes a second
recomputation, whose values are then kept until this backward ends: at most two for each backward. Outside of a backward
(`y.grad_fn._saved_result`), only the value that is asked for is computed, and it is not kept.

Rule 6. A backward may run inside a segment.

    def fn(x):
        y = x.sin()
        g, = torch.autograd.grad(y.sum(), x, create_graph=True)
        return g * y

The first run saves only holders, so `grad` recomputes what `fn` has saved so far, and stops there. The graph of a
recomputation has real tensors, which `grad` uses when `fn` is recomputed.

Rule 7. The tensors that a recomputation saves are compared with those of the first run.

Always compared are the number of tensors, the shape, dtype and device of each, and the versions of parameters and
inputs, so that modifying these between forward and backward is an error as in plain autograd. Values are compared by
fingerprints, in the first recomputation of each function (`check="first"`), in every one or in none. A difference
raises a DeterminismError or a StepError, and there is no gradient. Integers that differ may be workspace without a
meaning, as in an LSTM, and are confirmed first (confirmation.py).

Rule 8. A recomputation leaves no trace.

    def fn(x):
        self.calls += 1                 # 1 after the forward, and after the backward
        cache.append(x.exp())           # one entry, that of the first run
        return x * self.calls           # times 1 in the recomputation, too

What the function reaches is, for the recomputation, as it was at the call, and afterwards as it was before, however the
recomputation ends (environment.py). So changes between forward and backward do no harm either: `eval()`, frozen or
replaced parameters, layers and hooks, another forward. In the usual case nothing has to be replaced.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.compiler import is_compiling

from remat.execute.recomputation import StopRecomputation, recomputing, variable_set
from remat.frameworks.compilers import looks_at_calls, run_uncompiled
from remat.frameworks.torch.internals.functorch import (
    HooksRefused,
    in_transform,
    outside_transforms,
    refuses_hooks,
    remember_transforms,
    uses_transforms,
)
from remat.frameworks.torch.internals.graph import (
    call_after_backward,
    current_backward,
    hooks_suspended,
    restored_leaf_state,
    version,
)
from remat.frameworks.torch.internals.modules import script_as_written
from remat.frameworks.torch.internals.saved_tensor_hooks import (
    has_saved_tensor_hooks,
    saved_tensor_hooks_allowed,
    without_saved_tensor_hooks,
)
from remat.frameworks.torch.leaves import nbytes, tensors_in
from remat.frameworks.torch.lineage.lineage import Lineage, unpack
from remat.frameworks.torch.replay.environment import Environment
from remat.frameworks.torch.replay.known_reach import ReachCache
from remat.frameworks.torch.replay.tensor_state import Storages
from remat.frameworks.torch.segments.confirmation import CompleteRun, confirm_work_space, output_fingerprints
from remat.frameworks.torch.segments.recompute import Recomputation, raise_if_used
from remat.frameworks.torch.segments.saved_tensors import Holder, SavedParameter, SavedTensors, comparable_storage
from remat.frameworks.torch.segments.segment_inputs import LoadedInputs, RecomputedInputs, SegmentInputs
from remat.frameworks.torch.segments.segment_profile import PullbackRecord, segment_bytes, segment_name
from remat.loops.plan_log import PlanLog
from remat.profiling.call_record import CallRecord
from remat.profiling.profiler import segment_pass
from remat.pytree import flatten
from remat.segments import CheckOnce, CheckpointOptions, mutation_error, nested, nesting_depth

__all__ = ["CheckpointFrame", "checkpoint"]

# The innermost segment whose first run is in progress.
_current_frame: ContextVar["CheckpointFrame | None"] = ContextVar("checkpoint_frame", default=None)
# One recomputation at a time: it restores random generators, modules and leaves, which all threads share.
_RECOMPUTE_LOCK = threading.RLock()


def checkpoint(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CheckpointOptions,
    call: CallRecord | None = None,
    frame_of: "Callable[..., CheckpointFrame] | None" = None,
) -> Any:
    """What `fn` returns; its saved tensors are not kept, unless its outputs are within the threshold.

    It is a plain call without gradients, when lazy modules are initialized, and where saved-tensor hooks are refused:
    inside and around torch.func transforms and in torch.jit traces. `frame_of` makes the frame.
    """
    if call is not None:
        call.begin_segment("torch")
    is_tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    if torch.is_grad_enabled() and not in_transform() and not is_tracing and not uses_transforms(fn):
        frame = (frame_of or CheckpointFrame)(fn, args, kwargs, options, call)
        if not frame.lazy:
            try:
                return frame.forward(fn, args, kwargs)
            except HooksRefused:  # everything is as before that run
                if has_saved_tensor_hooks():  # an enclosing segment's would be refused as well, so it is given up too
                    raise
    if call is not None:
        call.count_run()
    name, depth = segment_name(fn), nesting_depth()
    with segment_pass(name, "forward", depth), nested(depth):
        return fn(*args, **kwargs)


class CheckpointFrame:
    """One call of a function whose saved tensors are not kept; lives as long as one of its holders."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CheckpointOptions,
        call: CallRecord | None,
        recomputed: RecomputedInputs | None = None,
        lineage: Callable[[], Lineage | None] = lambda: None,
        cache: ReachCache | None = None,
    ) -> None:
        self._lineage = lineage  # of what a recomputation does not hold either, but rebuilds
        self.name, self.options, self.call, self.depth = segment_name(fn), options, call, nesting_depth()
        self._inputs = SegmentInputs(fn, args, kwargs, recomputed)
        self._environment = Environment(self._inputs.fn, self._inputs.others, self._inputs.add_captured, cache)
        self._inputs.share(self._environment.container_ids)
        self.lazy = self._environment.lazy
        self.saved_bytes = segment_bytes(self._inputs.tensors)
        self.holders: list[ReferenceType[Holder]] = []
        self._parameters, self._saved_parameters = self._environment.tensors.parameter_ids(), 0
        around = _current_frame.get()
        enclosing: PullbackRecord | None = None if around is None else around.pullback
        self.pullback: PullbackRecord = PullbackRecord(self.name, self.depth, enclosing)
        self._given = self._inputs.save()  # until the first run has ended
        self.check = CheckOnce(fn, options.check)
        self._saved = SavedTensors(checked=self.check.wanted, watched=options.check == "never")
        self._written: set[int] = set()  # saved tensors that a recomputation was seen to write into
        self._complete = False  # whether the first run has ended
        self._differentiates = False  # whether the first run had a backward inside (rule 6)
        self._outputs: list[Tensor] = []  # fingerprints, if suspicious tensors are saved
        self._plans = PlanLog()
        self._undecided = options.threshold is not None  # whether real tensors are kept until the outputs are known
        self._backward_tasks: dict[int, bool] = {}  # by backward: whether its values are kept until it ends (rule 5)

    def forward(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function returns; its saved tensors are replaced by holders."""
        given, self._given = self._given, []
        if self.call is not None:
            self.call.count_run()
        try:
            with (
                segment_pass(self.name, "forward", self.depth),
                nested(self.depth),
                variable_set(_current_frame, self),
                self._plans.first_run(),
                script_as_written(),
                self._environment.calls_refused,
                saved_tensors_hooks(self._pack, _unpack),
            ):
                out = fn(*args, **kwargs)
        except RuntimeError as error:
            if not refuses_hooks(error):
                raise
            self._environment.rewind(given)
            self._inputs.rewind(given)
            remember_transforms(fn)
            raise HooksRefused(str(error)) from error
        self._complete = True
        self._environment.finish_forward()
        self._inputs.finish_forward()
        if self._saved.finish_forward():
            self._outputs = output_fingerprints(out)
        self._apply_threshold(out) if self._undecided else self._report_saved_bytes(out)
        self.saved_bytes = None
        return out

    def _report_saved_bytes(self, out: Any) -> None:
        """Report the bytes that are not kept to the profiler, if there is one and something is differentiable."""
        if self.saved_bytes is not None and (self.holders or any(leaf.requires_grad for leaf in tensors_in(out))):
            self.saved_bytes.report(self.name, out, self.call)

    def _apply_threshold(self, out: Any) -> None:
        """Drop the saved tensors if the outputs exceed the threshold; else save them as plain autograd does."""
        self._undecided = False
        assert self.options.threshold is not None
        is_dropped = sum(map(nbytes, flatten(out)[0])) > self.options.threshold
        for holder in self._live_holders():
            holder.drop() if is_dropped else holder.save()
        if is_dropped:
            self._report_saved_bytes(out)

    def _pack(self, tensor: Tensor) -> Holder | SavedParameter:
        """The holder of a tensor that is saved in the first run."""
        if is_compiling():  # checked inside, since most of the cost of a small block is in saved tensors
            return run_uncompiled(self._pack, tensor)
        if id(tensor) in self._parameters:
            self._saved_parameters += 1
            self.pullback.saves(-1 - self._saved_parameters)
            return SavedParameter(self, -1 - self._saved_parameters, tensor)
        # A leaf is kept itself, as in plain autograd: its backward sees a `.data` that was replaced meanwhile.
        kept = None if not self._undecided else tensor if tensor.is_leaf else tensor.detach()
        index = len(self.holders)
        holder = Holder(self, index, kept)
        self.holders.append(ref(holder))
        self._saved.add(tensor)
        self.pullback.saves(index)
        if self.saved_bytes is not None:
            self.saved_bytes.add(tensor)
        return holder

    def _live_holders(self) -> list[Holder]:
        return [holder for reference in self.holders if (holder := reference()) is not None]

    def unpack(self, holder: Holder | SavedParameter) -> Tensor:
        """The tensor of a holder, for one use; recomputed if this backward has no value for it (rule 5)."""
        task, index = current_backward(), holder.index
        self._differentiates = self._differentiates or not self._complete
        if isinstance(holder, SavedParameter):
            value: Any = holder.take(self.name, self._environment.tensors.is_written)
        elif index in self._written or (self._saved.watches and self._saved.was_written(index)):
            what = f"tensor {index} of the {len(self._saved)} that it saves for its backward"
            raise mutation_error(self.name, what, "by it, after it was saved")
        elif holder.saved is None:
            values = holder.values
            if task not in values:
                with _RECOMPUTE_LOCK:
                    if task not in values:  # another thread of this backward may have computed it
                        # The first run was below all transforms, but the backward may be mapped, as in jacrev.
                        with outside_transforms(), saved_tensor_hooks_allowed():
                            self._recompute(task, holder)
                if index in self._written:
                    return self.unpack(holder)
            value = values[task] if self._backward_tasks.get(task) else values.pop(task)
        else:
            value = holder.value()
        if task != -1:
            self.pullback.unpacks(index, task)
        return value if isinstance(value, Tensor) else unpack(value)

    def run_again(self, task: int | None = None) -> Any:
        """What the function returns when run again to its end; fills the holders for the backward `task`, if given."""
        with _RECOMPUTE_LOCK:
            if task is not None and self._live_holders():
                return self._recompute(task)
            # With a graph, as in the first run, since kernels and a function's own path may depend on that. A segment
            # that differentiates inside asks for this in its own run, whose hooks are not for this function.
            saving = nullcontext() if self._differentiates else saved_tensors_hooks(_save_nothing, _save_nothing)
            with self._again() as (inputs, _), torch.enable_grad(), without_saved_tensor_hooks(), saving:
                return inputs.fn(*inputs.args, **inputs.kwargs)

    def _recompute(self, task: int, requested: Holder | None = None) -> Any:
        """Fill the holders for one backward; if that has happened before in it, they keep their values until it ends.

        With `requested`, it stops when the holders are full; otherwise it runs to the end and returns what the function
        returns.
        """
        holders = {} if requested is None else {requested.index: requested}
        if task != -1:
            if task not in self._backward_tasks:
                call_after_backward(partial(_release_values, ref(self), task))
            self._backward_tasks[task] = task in self._backward_tasks
            holders = {holder.index: holder for holder in self._live_holders()}
        changed = self._environment.tensors.written_since() if self._complete else []
        out: Any = None
        with self._again() as (inputs, storages):
            changing = storages.written | {comparable_storage(tensor) for tensor in inputs.data}
            stops = self.options.early_stop and not changed and requested is not None
            known, lineage = (self._parameters, storages.restored, changing), self._lineage()
            recomputation = Recomputation(self.name, self._saved, task, holders, *known, stops=stops, lineage=lineage)
            try:
                with recomputation.recording():
                    out = inputs.fn(*inputs.args, **inputs.kwargs)
            except StopRecomputation as stop:
                if stop.args[0] is not recomputation:
                    raise
            except Exception as error:
                if not recomputation.stopped:  # TorchScript replaces what a hook raises by its own error
                    error.add_note(f"while the segment {self.name} was recomputed")
                    raise
        if changed:
            raise_if_used(changed, tensors_in(out), self.name)
        suspects = recomputation.finish(complete=self._complete)
        self._written.update(recomputation.written())
        if suspects and self._complete:
            run = partial(self._complete_run, [index for index, _ in suspects])
            confirm_work_space(self.name, len(self._saved), suspects, self._outputs, run)
        if self.check.wanted and self._complete and recomputation.count >= len(self._saved):
            self.check.mark_passed()
        self.pullback.recomputed()
        return out

    @contextmanager
    def _again(self) -> Iterator[tuple[LoadedInputs, Storages]]:
        """A context in which the function can run as at the call; yields the inputs and the memory written into."""
        inputs = self._inputs.load(self.name)
        versions = [(tensor, version(tensor)) for tensor in inputs.shared]
        if self.call is not None:
            self.call.count_run()
        with (
            recomputing(True),
            self._plans.again(),
            segment_pass(self.name, "recompute", self.depth),
            self._environment.restored(self.name, inputs.tensors, inputs.copied) as storages,
            restored_leaf_state(inputs.flags) if inputs.flags else nullcontext(),
            nested(self.depth),
            variable_set(_current_frame, None),
            script_as_written(),
        ):
            yield inputs, storages
        if any(version(tensor) != before for tensor, before in versions):
            raise mutation_error(self.name, "one of its inputs", "by it")

    def _complete_run(self, suspects: list[int], replaced: bool) -> CompleteRun:
        """Run the function to its end, and its backward; if `replaced`, with other numbers in float suspects."""
        with self._again() as (inputs, _):
            roots = [
                tensor for tensor in (*inputs.tensors, *self._environment.tensors.parameters()) if tensor.requires_grad
            ]
            with hooks_suspended(roots):
                run = partial(inputs.fn, *inputs.args, **inputs.kwargs)
                return CompleteRun.of(run, roots, suspects, self._parameters, replaced=replaced)


def _save_nothing(_: object) -> Any:
    """The hook of a run whose graph nobody pulls back."""


def _unpack(holder: Holder | SavedParameter) -> Tensor:
    if is_compiling() or looks_at_calls():
        return run_uncompiled(_unpack, holder)
    return holder.owner.unpack(holder)


def _release_values(segment: "ReferenceType[CheckpointFrame]", task: int) -> None:
    """Drop the values that a backward has not taken by its end."""
    frame = segment()
    if frame is not None:
        frame._backward_tasks.pop(task, None)
        for holder in frame._live_holders():
            holder.values.pop(task, None)
