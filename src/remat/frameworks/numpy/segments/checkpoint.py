"""Segments under autograd: one primitive, whose forward keeps only its inputs.

In: a function and its arguments. Out: its results, which autograd differentiates. The function first runs on plain
arrays. The VJP recomputes it in its own trace, to the end: autograd has no hook by which to stop it early. If inputs or
cotangents are boxes of an outer trace, the recomputation is part of that trace, too, so that derivatives of any order
work.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter

from autograd.extend import primitive, vspace
from autograd.tracer import getval

from remat.execute.recomputation import is_recomputing, recomputing
from remat.frameworks.numpy.captured_state import CapturedStep, Environment
from remat.frameworks.numpy.escaped_values import has_new_arrays, mark_escaped
from remat.frameworks.numpy.leaves import is_boxed
from remat.frameworks.numpy.multiple_results import Results, define_derivatives, make_results
from remat.frameworks.numpy.protection import NotAsAutograd, is_readonly_error, readonly_view
from remat.frameworks.numpy.segments.segment_outputs import SegmentOutputs, nbytes_of
from remat.frameworks.numpy.tape import ActiveTraces, Node, box_leaves, fresh_trace, is_result, pull_back, tape_size
from remat.frameworks.numpy.tape_contents import NodeLog, saved_arrays
from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import name_segment, segment_pass
from remat.profiling.segment_contents import SegmentContents
from remat.profiling.source_location import place_of
from remat.pytree import Leaf, PyTree
from remat.segments import CheckOnce, CheckpointOptions, display_name, mutation_error, nested, nesting_depth

__all__ = ["CheckpointCall", "checkpoint"]


def checkpoint(
    fn: Callable[..., PyTree],
    args: tuple[Leaf, ...],
    kwargs: dict[str, PyTree],
    options: CheckpointOptions,
    call: CallRecord | None = None,
) -> PyTree:
    """Call `fn` without keeping its tape, unless its outputs are within the threshold; untraced, a plain call."""
    if call is not None:
        call.begin_segment("numpy")
    if ActiveTraces():
        segment = CheckpointCall(fn, args, kwargs, options, call)
        boxes = segment.take_values()
        segment.held_bytes = sum(nbytes_of([getval(box)]) for box in boxes if is_result(box))
        if boxes:
            out = _segment(segment, *boxes)
            segment.mark_escaped(boxes)
            return segment.outputs.tree.unflatten(segment.outputs.with_boxes(out))
    if call is not None:
        call.count_run()
    name, depth = display_name(fn), nesting_depth()
    with segment_pass(name, "forward", depth), nested(depth):
        return fn(*args, **kwargs)


class CheckpointCall:
    """One call of a function whose tape is not kept."""

    outputs: SegmentOutputs
    held_bytes = 0  # of arguments that are results of ops: they are held until the segment is pulled back

    def __init__(
        self,
        fn: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
        options: CheckpointOptions,
        call: CallRecord | None,
    ) -> None:
        self.name, self.options, self.call, self.depth = display_name(fn), options, call, nesting_depth()
        if not self.depth and not is_recomputing():
            self.name = name_segment(self.name)
        # Arguments are searched like closures: boxes in them are rebound in place, so that the function gets the
        # caller's own lists and objects.
        self._captured = CapturedStep(partial(fn, *args, **kwargs))
        self._check, self._place = CheckOnce(fn, options.check), place_of(fn)
        self._tape: tuple[list[Node], list[Node | None]] | None = None
        self._environment: Environment | None = None
        self._was_recorded = False  # in its first run

    def take_values(self) -> list[Leaf]:
        """Take the boxes among the arguments and in closures; no reference to them is kept here."""
        return self._captured.take_values()

    def mark_escaped(self, boxes: Sequence[Leaf]) -> None:
        """Replace the values that the function, called with these boxes, has stored in containers."""
        if self._was_recorded:  # otherwise it has stored nothing that is traced
            assert self._environment is not None
            mark_escaped(self._environment.contents, boxes, self._place)

    def forward(self, values: Sequence[Leaf]) -> Results:
        """Run the function for the first time; return its differentiable outputs."""
        check, self._environment = self._check.wanted, self._captured.environment()
        tracking = CheckpointProfiler.is_tracking() and not is_recomputing()
        with segment_pass(self.name, "forward", self.depth):
            # Recorded if the bytes of the tape are needed, or if the code has `t += x`, which keeps the array that t
            # was only if t is a box.
            if self.options.threshold is not None or tracking or self._captured.may_write:
                self._record_first(values, check, tracking)
            else:
                try:
                    out = self._call_function([readonly_view(value) for value in values])
                    self.outputs = SegmentOutputs(out, self.name, check=check)
                except NotAsAutograd as error:
                    self._run_as_autograd(values, check, error)
                else:
                    # Only boxes show whether stored numbers depend on traced values.
                    if has_new_arrays(self._environment.contents):
                        self._run_as_autograd(values, check)
        self._environment.forget_unused()
        return self.outputs.differentiable_leaves()

    def _run_as_autograd(self, values: Sequence[Leaf], check: bool, error: NotAsAutograd | None = None) -> None:
        """Rerun the function on boxes, since it stores arrays, or writes into them, where autograd makes new ones."""
        assert self._environment is not None
        self._environment.restore()
        try:
            self._record_first(values, check, tracking=False)
        except TypeError as also:  # autograd cannot record that write either
            raise error or also from also

    def _record_first(self, values: Sequence[Leaf], check: bool, tracking: bool) -> None:
        """Record the first run, to count the bytes of its tape, or to keep the tape if the outputs are small."""
        self._was_recorded = True
        with fresh_trace() as trace:
            boxes, roots = box_leaves([readonly_view(value) for value in values], [True] * len(values), trace)
            self.outputs = SegmentOutputs(self._call_function(boxes), self.name, trace, check=check)
        nodes, threshold = self.outputs.nodes, self.options.threshold
        if threshold is not None and nbytes_of(self.outputs.leaves) <= threshold:
            self._tape = roots, nodes
        elif tracking:
            shared = [*values, *self.outputs.leaves, *self._captured.arrays]
            CheckpointProfiler.note(tape_size([node for node in nodes if node is not None], shared))
        self.outputs.nodes = []

    def reverse(self, values: Sequence[Leaf], cotangents: Sequence[Leaf], indices: Sequence[int]) -> list[Leaf]:
        """The gradients of the inputs with these indices."""
        first_order = not any(map(is_boxed, [*values, *cotangents]))
        # A kept tape was recorded on plain arrays, so it cannot be differentiated again.
        if self._tape is not None and first_order:
            roots, nodes = self._tape
            used_up = self.options.once
            self._tape = None if used_up else self._tape
        else:
            used_up = True
            with self._recomputation(), fresh_trace() as trace:
                boxes, roots = box_leaves(values, [i in indices for i in range(len(values))], trace)
                with self._listed(values) as found:
                    nodes = found[:] = self.outputs.compare(self._call_function(boxes), trace)
            self._check.mark_passed()
        began = perf_counter()
        pairs = [(node, bar) for node, bar in zip(nodes, cotangents, strict=True) if not (node is None or bar is None)]
        sums = pull_back([pairs], {}, used_up=used_up)
        with segment_pass(self.name, "pullback", self.depth, since=began):  # after inner segments have reported theirs
            pass
        return [sums[roots[i]][0] if roots[i] in sums else vspace(values[i]).zeros() for i in indices]

    @contextmanager
    def _listed(self, values: Sequence[Leaf]) -> Iterator[list[Node | None]]:
        """A context that recomputes, and puts the results' nodes into the list; a profile notes what these keep."""
        nodes: list[Node | None] = []
        if self.call is None or self.call.contents is not None:
            yield nodes
            return
        log = NodeLog()
        log.begin()
        try:
            yield nodes
        finally:
            log.end()
        shared = [*values, *self.outputs.like, *self._captured.arrays]
        arrays = tuple(saved_arrays(nodes, shared, log))
        dropped = sum(array.bytes for array in arrays)
        self.call.note_contents(SegmentContents(self.name, self.held_bytes, dropped, arrays))

    def tangent(self, values: Sequence[Leaf], tangents: dict[int, Leaf]) -> PyTree:
        """The tangents of the results, from those of inputs by index."""
        with self._recomputation(), fresh_trace() as trace:
            needed = [i in tangents for i in range(len(values))]
            boxes, _ = box_leaves(values, needed, trace, list(tangents.values()))
            nodes = self.outputs.compare(self._call_function(boxes), trace)
        # A result that does not depend on these inputs has no node, and a tangent of zero.
        zeros = [vspace(leaf).zeros() for leaf in self.outputs.like]
        return make_results(*(zero if node is None else node.g for node, zero in zip(nodes, zeros, strict=True)))

    @contextmanager
    def _recomputation(self) -> Iterator[None]:
        """A context in which the function is recomputed, in the environment of its first run."""
        assert self._environment is not None
        with recomputing(True), segment_pass(self.name, "recompute", self.depth), self._environment.at_call():
            yield

    def _call_function(self, values: Sequence[Leaf]) -> PyTree:
        """Call the function with these values in place of its boxes."""
        if self.call is not None:
            self.call.count_run()
        with nested(self.depth), self._captured.rebind(list(values)) as fn:
            try:
                return fn()
            except ValueError as error:
                if is_readonly_error(error):
                    message = str(mutation_error(self.name, "an array that it is given or closes over", "by it"))
                    raise NotAsAutograd(message) from error
                raise


@primitive  # type: ignore[untyped-decorator]
def _segment(segment: CheckpointCall, *values: PyTree) -> Results:
    return segment.forward(values)


define_derivatives(_segment, CheckpointCall.reverse, CheckpointCall.tangent)
