"""What a profile learns about a segment on PyTorch: its module's path, and the tensors that its backward needs.

The path is that of the module within the outermost module whose call is on the stack: `blocks.3.mlp`. The name of a
function is prefixed with the path of the module that calls it. What it can miss: a module that is in no other has no
path, and is named after its class. Cost: nothing without a profile; with one, a walk over the stack for each call and
for each saved tensor.
"""

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from remat.execute.recomputation import is_recomputing
from remat.frameworks.torch.internals.storage import SavedBytes, is_dense, local_part, storage_id
from remat.frameworks.torch.loops.tape_contents import looked_through, op_name
from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import is_profiling, name_segment, segment_pass
from remat.profiling.segment_contents import SavedTensor, SegmentContents
from remat.profiling.source_location import user_frame
from remat.pytree import flatten
from remat.segments import display_name, nesting_depth

__all__ = ["PullbackRecord", "SegmentBytes", "path_in_container", "segment_bytes", "segment_name"]

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_names: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()  # names of modules that were segments in a profile
MOST_TENSORS = 200  # the most tensors listed for one segment


class PullbackRecord:
    """When the pullback of a segment ends: as its backward unpacks the tensor that the forward saved first.

    If the forward starts with another segment, that tensor is in there, and the pullbacks of both end together.
    """

    _IN_INNER = -1  # the first saved tensor belongs to an inner segment

    def __init__(self, name: str, depth: int, enclosing: "PullbackRecord | None") -> None:
        self._name, self._depth = name, depth
        self._first: int | None = None  # the index of the first saved tensor, once there is one
        self._enclosing = enclosing if enclosing is not None and enclosing._starts_with_segment() else None
        self._ended_in, self._recomputed_at = -1, 0.0

    def _starts_with_segment(self) -> bool:
        """Whether the inner segment that starts now is the first thing in this one."""
        is_first = self._first is None
        self.saves(self._IN_INNER)
        return is_first

    def saves(self, index: int) -> None:
        """Note that the forward saves a tensor."""
        if self._first is None:
            self._first = index

    def recomputed(self) -> None:
        """Note that a recomputation has ended, after which the pullback goes on."""
        self._recomputed_at = perf_counter()

    def unpacks(self, index: int, task: int) -> None:
        """Report the end of the pullback to the profile if a backward unpacks the first tensor, once for each."""
        if index == self._first:
            self._end(task)

    def _end(self, task: int) -> None:
        if self._ended_in == task:
            return
        self._ended_in = task
        with segment_pass(self._name, "pullback", self._depth, since=self._recomputed_at or None):
            pass
        if self._enclosing is not None:
            self._enclosing._end(task)


def segment_name(fn: Any) -> str:
    """The name of a segment; in a profile, with the path of its module."""
    name = display_name(fn)
    if not is_profiling():
        return name
    modules = _modules_on_stack()
    module = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    if isinstance(module, nn.Module):
        if is_recomputing():  # the model itself is not on the stack of a backward
            return _names.get(module) or _path(module, modules) or name
        _names[module] = _path(module, modules) or name
        return _names[module]
    owner = next((_path(each, modules) for each in modules), "")
    name = f"{owner}.{name.rpartition('<locals>.')[2]}" if owner else name
    # Nested segments are recomputed with the outer one, as new calls, and share a name.
    return name if is_recomputing() or nesting_depth() else name_segment(name)


def path_in_container(module: nn.Module) -> str | None:
    """The path of a module that is in a list or sequence of modules of a running model; else None."""
    modules = _modules_on_stack()
    parents = [each for each in modules[-1].modules() if isinstance(each, CONTAINERS)] if modules else []
    if not any(module is child for parent in parents for child in parent.children()):
        return None
    return _path(module, modules) or None


def _modules_on_stack() -> list[nn.Module]:
    """The modules whose methods are running, innermost first."""
    found: list[nn.Module] = []
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_locals.get("self") if frame.f_code.co_argcount else None
        if isinstance(module, nn.Module) and not any(module is each for each in found):
            found.append(module)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return found


def _path(module: nn.Module, modules: Sequence[nn.Module]) -> str:
    """The path of a module within the outermost module that contains it."""
    for root in reversed(modules):
        for path, each in root.named_modules():
            if each is module and path:
                # A path of numbers only, as in a sequence of modules, says little.
                return f"{type(root).__name__}.{path}" if path.replace(".", "").isdigit() else str(path)
    return ""


def segment_bytes(inputs: Sequence[Tensor]) -> "SegmentBytes | None":
    """A counter of what a segment does not keep, if a profile wants it and this is not a recomputation."""
    if is_recomputing() or not (CheckpointProfiler.is_tracking() or is_profiling()):
        return None
    return SegmentBytes(inputs)


class SegmentBytes(SavedBytes):
    """The bytes that a segment does not keep and, in a profile, each of the tensors."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__(inputs)
        self._listed = is_profiling()
        # With their storage ids, which are reused after a storage is freed, as most are during the forward.
        self._tensors: list[tuple[int, SavedTensor]] = []
        held = {storage_id(each): local_part(each).untyped_storage().nbytes() for each in inputs if _is_held(each)}
        self._input_bytes = sum(held.values())

    def add(self, tensor: Tensor) -> None:
        """Count a saved tensor."""
        before = self.count
        super().add(tensor)
        if self._listed and self.count > before and len(self._tensors) < MOST_TENSORS:
            made = tensor.grad_fn
            op = "made inside an op" if made is None else op_name(looked_through(made))
            size = local_part(tensor).untyped_storage().nbytes()
            line, dtype = user_frame().short, str(tensor.dtype).removeprefix("torch.")
            saved = SavedTensor(op, tuple(tensor.shape), dtype, size, line, _innermost_path())
            self._tensors.append((storage_id(tensor), saved))

    def report(self, name: str, out: Any, call: CallRecord | None) -> None:
        """Report to the profiler and the profile what the segment `name` did not keep."""
        leaves = flatten(out)[0]
        size = self.without(leaves)
        if CheckpointProfiler.is_tracking():
            CheckpointProfiler.note(size)
        if call is not None:
            outputs = {storage_id(leaf) for leaf in leaves if is_dense(leaf)}
            tensors = []
            for key, each in reversed(self._tensors):  # an output is the last tensor that had its storage id
                if key in outputs:
                    outputs.discard(key)
                else:
                    tensors.append(each)
            call.note_contents(SegmentContents(name, self._input_bytes, size, tuple(reversed(tensors))))


def _innermost_path() -> str:
    modules = _modules_on_stack()
    return _path(modules[0], modules) if modules else ""


def _is_held(tensor: Tensor) -> bool:
    """Whether an input is held for the segment's sake; parameters live anyway."""
    return is_dense(tensor) and not (tensor.is_leaf and tensor.requires_grad)
