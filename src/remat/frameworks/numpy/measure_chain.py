"""The costs of the stages of a chain on NumPy: each stage runs alone a few times, under tracemalloc, in its own trace.

The rule: bytes are those above the stage's live input, as in `Stage` and `Option`, including the Python objects of
tapes. The pullback starts from cotangents of ones; its peak includes the gradients of what the stage closes over, which
autograd allocates. Measuring has no effects: generators and containers that stages reach are restored.

What it can miss: memory that functions allocate outside Python and NumPy, and the few kilobytes of a segment's own
objects. Autograd frees no node before its whole backward has ended; plans account for that (retained_peak.py).
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter

import numpy as np

from remat.execute.recomputation import recomputing
from remat.execute.state_replay import preserved_state
from remat.frameworks.numpy.captured_state import CapturedStep
from remat.frameworks.numpy.leaves import is_boxed, numbers, unpack
from remat.frameworks.numpy.meter import NumpyMeter
from remat.frameworks.numpy.protection import is_readonly_error, readonly_view
from remat.frameworks.numpy.tape import ActiveTraces, Node, box_leaves, fresh_trace, is_boxable, pull_back, unbox
from remat.problem import Chain, Option, Stage
from remat.pytree import Leaf, PyTree, flatten
from remat.segments import display_name

__all__ = ["chain_key", "measure_chain"]

QUICK = 0.05  # seconds: a stage that takes longer is timed once
TIMES = 5  # runs of a quick stage


def measure_chain(stages: Sequence[Callable[[PyTree], PyTree]], x: PyTree) -> Chain:
    """The measured chain of these stages on an input like `x`, whose own bytes, held by the caller, do not count."""
    found = []
    with fresh_trace(), recomputing(True):  # without an open trace, stages are not searched for what they reach
        captured = [CapturedStep(stage) for stage in stages]
        with preserved_state([state for each in captured for state in each.replayable_states]):
            for number, (stage, converted) in enumerate(zip(stages, captured, strict=True)):
                measurement = _Measurement(converted, x)
                found.append(measurement.stage(f"{number} {display_name(stage)}"))
                x = measurement.run()
    return Chain(found, input=0)


def chain_key(stages: Sequence[Callable[[PyTree], PyTree]], x: PyTree) -> Hashable | None:
    """The specs of the input's leaves; None without an open trace."""
    if not ActiveTraces():
        return None
    leaves = [(numbers(leaf), is_boxed(leaf)) for leaf in flatten(x, unpack)[0]]
    return "numpy", *((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf))), boxed) for leaf, boxed in leaves)


class _Measurement:
    """The runs of one stage from one input."""

    def __init__(self, stage: CapturedStep, x: PyTree) -> None:
        leaves, self._tree = flatten(x, unpack)
        self._leaves = [readonly_view(numbers(leaf)) for leaf in leaves]
        self._step = stage
        self._captured = [readonly_view(numbers(value)) for value in stage.take_values()]
        self._writes = False

    def stage(self, name: str) -> Stage:
        """The measured stage."""
        nodes, results = self._record(self._leaves)  # a first run, to warm up
        self._pull_back(nodes, results)
        del nodes, results
        meter = NumpyMeter()
        with meter.counting():
            output, running = self._sizes_of_run(meter)
            tape, recording, pulling, holds_input, holds_output = self._sizes_of_graph(meter, output)
        forward, record, backward = self._seconds()
        option = Option(tape, record, backward, recording, pulling, holds_input, holds_output, "keep all")
        return Stage(forward, output=output, forward_workspace=max(0, running - output), name=name, options=[option])

    def _sizes_of_run(self, meter: NumpyMeter) -> tuple[int, int]:
        before = meter.now()
        meter.reset_peak()
        out = self.run()
        sizes = meter.now() - before, meter.peak() - before
        del out
        return sizes

    def _sizes_of_graph(self, meter: NumpyMeter, output: int) -> tuple[int, int, int, bool, bool]:
        """The tape's own bytes, the peaks of record and pullback, and whether the tape holds input and output."""
        start = meter.now()
        leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in self._leaves]
        given = meter.now()
        meter.reset_peak()
        nodes, results = self._record(leaves)
        recording, specs = meter.peak() - given, [(np.shape(each), np.result_type(each)) for each in results]
        level = meter.now()
        del results
        holds_output = 2 * (level - meter.now()) < output  # a factor of 2 allows for the Python objects around arrays
        level = meter.now()
        del leaves
        holds_input = 2 * (level - meter.now()) < given - start
        beside = start + (given - start if holds_input else 0)
        tape = max(0, meter.now() - beside - (output if holds_output else 0))
        meter.reset_peak()
        self._pull_back(nodes, [np.ones(shape, dtype) for shape, dtype in specs])
        return tape, max(recording, output + tape), max(meter.peak() - beside, tape), holds_input, holds_output

    def run(self) -> PyTree:
        """The stage's result, computed without a tape."""
        if not self._writes:
            try:
                with self._step.rebind(self._captured) as stage:
                    return stage(self._tree.unflatten(self._leaves))
            except ValueError as error:
                if not is_readonly_error(error):
                    raise
                self._writes = True  # on boxes, as autograd runs it, `x += 1` makes a new array
        out, trace = self._run_traced(self._leaves)
        leaves, tree = flatten(out, unpack)
        return tree.unflatten([unbox(leaf, trace)[0] for leaf in leaves])

    def _run_traced(self, leaves: Sequence[Leaf]) -> tuple[PyTree, float]:
        """The stage's result in its own trace, whose roots are these leaves and the captured values; and the trace."""
        with fresh_trace() as trace:
            boxes, _ = box_leaves(leaves, [True] * len(leaves), trace)
            captured, _ = box_leaves(self._captured, [True] * len(self._captured), trace)
            with self._step.rebind(captured) as stage:
                return stage(self._tree.unflatten(boxes)), trace

    def _record(self, leaves: Sequence[Leaf]) -> tuple[list[Node], list[Leaf]]:
        """The nodes of the differentiable results, and the results."""
        out, trace = self._run_traced(leaves)
        pairs = [unbox(leaf, trace) for leaf in flatten(out, unpack)[0]]
        pairs = [(value, node) for value, node in pairs if node is not None and is_boxable(value)]
        return [node for _, node in pairs], [value for value, _ in pairs]

    def _pull_back(self, nodes: list[Node], cotangents: list[Leaf]) -> None:
        pull_back([[*zip(nodes, cotangents, strict=True)]], {})

    def _seconds(self) -> tuple[float, float, float]:
        rows: list[list[float]] = []
        while len(rows) < TIMES and sum(map(sum, rows)) <= QUICK:
            times = [perf_counter()]
            self.run()
            times.append(perf_counter())
            nodes, results = self._record(self._leaves)
            times.append(perf_counter())
            self._pull_back(nodes, results)
            times.append(perf_counter())
            rows.append([after - before for before, after in pairwise(times)])
        forward, record, backward = (median(column) for column in zip(*rows, strict=True))
        return forward, record, backward
