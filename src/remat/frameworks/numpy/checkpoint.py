"""Segments under autograd: one primitive, whose forward keeps only its inputs.

In: a function and its arguments. Out: what it returns, which autograd differentiates. The function first runs on plain
arrays. When autograd asks for the VJP, it runs again in a trace of its own, to the end: autograd has no hook by which
to stop it early. If inputs or cotangents are boxes of an outer trace, the recomputation is part of that trace too, so
that derivatives of any order work.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from autograd.builtins import tuple as boxed_tuple
from autograd.extend import Box, defjvp_argnums, defvjp_argnums, primitive, vspace
from autograd.tracer import getval

from remat.closures.capture import ConvertedClosure
from remat.closures.capture_filter import BaseCaptureFilter
from remat.execute.recomputation import is_recomputing, recomputing
from remat.execute.state_replay import SegmentReplay
from remat.frameworks.numpy.leaves import is_boxed, unpack
from remat.frameworks.numpy.protection import is_readonly_error, readonly_view
from remat.frameworks.numpy.segment_outputs import SegmentOutputs, nbytes_of
from remat.frameworks.numpy.tape import ActiveTraces, box_leaves, fresh_trace, pull_back, tape_size
from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import segment_pass
from remat.pytree import flatten
from remat.segments import CheckOnce, CheckpointOptions, display_name, mutation_error, nested, nesting_depth

__all__ = ["CheckpointCall", "checkpoint"]


def checkpoint(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CheckpointOptions,
    call: CallRecord | None = None,
) -> Any:
    """What `fn` returns; its tape is not kept, unless its outputs are within the threshold. Untraced, a plain call."""
    if call is not None:
        call.framework, call.steps = "numpy", 0
    traces = ActiveTraces()
    if traces:
        segment = CheckpointCall(traces, fn, args, kwargs, options, call)
        boxes = segment.take_values()
        if boxes:
            out = _segment(segment, *boxes)
            return segment.outputs.with_boxes(out)
    if call is not None:
        call.steps = 1
    name, depth = display_name(fn), nesting_depth()
    with segment_pass(name, "forward", depth), nested(depth):
        return fn(*args, **kwargs)


class CheckpointCall:
    """One call of a function whose tape is not kept."""

    outputs: SegmentOutputs

    def __init__(
        self,
        traces: ActiveTraces,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CheckpointOptions,
        call: CallRecord | None,
    ) -> None:
        self.name, self.options, self.call, self.depth = display_name(fn), options, call, nesting_depth()
        self._leaves, self._tree = flatten((args, kwargs), unpack)
        self._box_indices = [index for index, leaf in enumerate(self._leaves) if is_boxed(leaf)]
        objects = [leaf for leaf in self._leaves if not isinstance(leaf, ATOMIC_TYPES)]  # may close over boxes too
        self._captured = ConvertedClosure(traces, fn, *objects)
        self._check = CheckOnce(fn, options.check)
        self._tape: tuple[list[Any], list[Any]] | None = None
        self._replay: SegmentReplay | None = None

    def take_values(self) -> list[Any]:
        """The boxes among arguments and in closures, in the order of `values` below; they are not kept here."""
        boxes = [self._leaves[index] for index in self._box_indices]
        for index in self._box_indices:
            self._leaves[index] = None
        return boxes + self._captured.take_values()

    def forward(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the function for the first time; its differentiable outputs."""
        check = self._check.wanted
        tracking = CheckpointProfiler.is_tracking() and not is_recomputing()
        self._replay = SegmentReplay(self._captured.replayable_states)
        with segment_pass(self.name, "forward", self.depth):
            if self.options.threshold is None and not tracking:
                self.outputs = SegmentOutputs(
                    self._call_function([readonly_view(value) for value in values]), self.name, check=check
                )
            else:
                self._record_first(values, check, tracking)
        self._replay.forget_unused()
        return self.outputs.differentiable_leaves()

    def _record_first(self, values: Sequence[Any], check: bool, tracking: bool) -> None:
        """Record the first run, to count the bytes of its tape, or to keep it if its outputs are small."""
        with fresh_trace() as trace:
            boxes, roots = box_leaves([readonly_view(value) for value in values], [True] * len(values), trace)
            self.outputs = SegmentOutputs(self._call_function(boxes), self.name, trace, check=check)
        nodes, threshold = self.outputs.nodes, self.options.threshold
        if threshold is not None and nbytes_of(self.outputs.leaves) <= threshold:
            self._tape = roots, nodes
        elif tracking:
            closed_over = _Arrays()
            ConvertedClosure(closed_over, self._captured.step)
            arguments = [leaf for leaf in self._leaves if leaf is not None]
            shared = [*values, *self.outputs.leaves, *arguments, *closed_over.arrays]
            CheckpointProfiler.note(tape_size([node for node in nodes if node is not None], shared))  # type: ignore[arg-type]
        self.outputs.nodes = []

    def reverse(self, values: Sequence[Any], cotangents: Sequence[Any], indices: Sequence[int]) -> list[Any]:
        """The gradients of the inputs with these indices."""
        first_order = not any(map(is_boxed, [*values, *cotangents]))
        if self._tape is not None and first_order:
            roots, nodes = self._tape
        else:
            with self._recomputation(), fresh_trace() as trace:
                boxes, roots = box_leaves(values, [i in indices for i in range(len(values))], trace)
                nodes = self.outputs.compare(self._call_function(boxes), trace)
            self._check.mark_passed()
        began = perf_counter()
        pairs = [(node, bar) for node, bar in zip(nodes, cotangents, strict=True) if node is not None]
        sums = pull_back([pairs], {})
        with segment_pass(self.name, "pullback", self.depth, since=began):  # after inner segments have reported theirs
            pass
        return [sums[roots[i]][0] if roots[i] in sums else vspace(values[i]).zeros() for i in indices]

    def tangent(self, values: Sequence[Any], tangents: Sequence[Any], indices: Sequence[int]) -> Any:
        """The tangents of the results, from those of the inputs with these indices."""
        with self._recomputation(), fresh_trace() as trace:
            boxes, _ = box_leaves(values, [i in indices for i in range(len(values))], trace, tangents)
            nodes = self.outputs.compare(self._call_function(boxes), trace)
        zeros = [vspace(leaf).zeros() for leaf in self.outputs.like]
        return boxed_tuple([zero if node is None else node.g for node, zero in zip(nodes, zeros, strict=True)])

    @contextmanager
    def _recomputation(self) -> Iterator[None]:
        """A block in which the function is recomputed: random generators start from their state of the first run."""
        assert self._replay is not None
        with recomputing(True), segment_pass(self.name, "recompute", self.depth), self._replay.rewound():
            yield

    def _call_function(self, values: Sequence[Any]) -> Any:
        """What the function returns with these values in the places of its boxes."""
        if self.call is not None and self.call.steps is not None:
            self.call.steps += 1
        leaves = list(self._leaves)
        for index, value in zip(self._box_indices, values, strict=False):
            leaves[index] = value
        args, kwargs = self._tree.unflatten(leaves)
        with nested(self.depth), self._captured.rebind(list(values[len(self._box_indices) :])) as fn:
            try:
                return fn(*args, **kwargs)
            except ValueError as error:
                if is_readonly_error(error):
                    raise mutation_error(self.name, "an array that it is given or closes over", "by it") from error
                raise


@primitive  # type: ignore[untyped-decorator]
def _segment(segment: CheckpointCall, *values: Any) -> tuple[Any, ...]:
    return segment.forward(values)


def _vjp(argnums: Sequence[int], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    segment, values, indices = args[0], args[1:], [argnum - 1 for argnum in argnums]

    def vjp(cotangents: Any) -> Sequence[Any]:
        gradients: list[Any] = segment.reverse(values, [cotangents[i] for i in range(len(cotangents))], indices)
        return gradients

    return vjp


def _jvp(argnums: Sequence[int], tangents: Sequence[Any], ans: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    return args[0].tangent(args[1:], tangents, [argnum - 1 for argnum in argnums])


defvjp_argnums(_segment, _vjp)
defjvp_argnums(_segment, _jvp)

# Arguments that are not searched for closures.
ATOMIC_TYPES = (np.ndarray, np.generic, Box, int, float, complex, str, bytes, type(None))


class _Arrays(BaseCaptureFilter):
    """Collects the arrays in closures, which stay alive whether a tape is kept or not."""

    opaque_types: ClassVar[tuple[type, ...]] = (np.ndarray, np.generic, Box)
    atomic_types: ClassVar[frozenset[type]] = frozenset()

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def accepts(self, leaf: Any) -> bool:
        if isinstance(leaf, np.ndarray):
            self.arrays.append(leaf)
        elif isinstance(leaf, Box):
            self.arrays.append(getval(leaf))
        return False
