"""The contents of an autograd tape: the arrays that its nodes keep, with the op and the line that made each.

The rule: while one step is recorded, the trace function of a `LineLog` sees each call of a node's constructor, and
reads the op and its result from the arguments. Then each array that a node's pullback refers to is one entry, except
memory that is shared with captured values, inputs and outputs. An array that no op of the step made came with the state
or from plain NumPy; its line is that of the op that keeps it.

What it can miss: what `LineLog` can miss; then there are no lines and no names of ops. The cost: about 10 us a node,
for one step of a loop or one segment in a profile.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from weakref import ref

import numpy as np
from autograd.extend import VJPNode, VSpace
from autograd.tracer import isbox

from remat.frameworks.numpy.tape import Node, RecordedRange, buffer_of
from remat.profiling.line_log import LineLog
from remat.profiling.segment_contents import SavedTensor
from remat.profiling.tape_contents import TapeContents
from remat.pytree import Leaf

__all__ = ["NodeLog", "NumpyTapeListing", "saved_arrays"]

_CONSTRUCTOR = VJPNode.__init__.__code__  # its arguments are read by name: tests/frameworks/numpy/test_private_api.py
_NOT_FOLLOWED = (type, ModuleType, CodeType, BuiltinFunctionType, VSpace, str, int, bool, np.dtype, type(None), Node)


class NodeLog(LineLog):
    """The nodes that one step creates, in order, with their ops and lines."""

    def __init__(self, current_step: Callable[[], int] = lambda: 0) -> None:
        super().__init__(lambda: len(self.ops), current_step)
        self.ops: list[str] = []
        self._nodes: dict[int, int] = {}  # by the id of a node: its number
        self._results: dict[int, tuple[ref[Leaf], int]] = {}  # by the id of an array

    def note_internal(self, frame: FrameType) -> None:
        """Note a new node, if this is the frame of its constructor."""
        if frame.f_code is not _CONSTRUCTOR:
            return
        given, number = frame.f_locals, len(self.ops)
        self.ops.append(getattr(given["fun"], "__name__", "op"))
        self._nodes[id(given["self"])] = number  # overwrites that of a freed node with the same id
        if isinstance(given["value"], np.ndarray):
            result = buffer_of(given["value"])
            self._results.setdefault(id(result), (ref(result), number))
            if self._results[id(result)][0]() is not result:
                self._results[id(result)] = ref(result), number

    def number_of(self, node: Node) -> int | None:
        """The number of a node; None if it was not logged."""
        return self._nodes.get(id(node))

    def maker_of(self, array: Leaf) -> int | None:
        """The number of the node whose result has this memory; None if there is none."""
        found = self._results.get(id(array))
        return found[1] if found is not None and found[0]() is array else None


class NumpyTapeListing:
    """Lists the tape of one step; `shared` arrays are alive without it."""

    def __init__(self, log: NodeLog, shared: Sequence[Leaf]) -> None:
        self.begin, self.end, self._log, self._shared = log.begin, log.end, log, shared

    def contents(self, tape: RecordedRange) -> TapeContents:
        """The arrays that the nodes of the logged step keep; those of all steps if none was logged."""
        ends = [node for piece in tape.tapes for row in (*piece.ys, piece.carry_out) for node in row]
        steps = 1 if self._log.ops else tape.stop - tape.start
        return TapeContents.of(list(saved_arrays(ends, self._shared, self._log)), steps)


def saved_arrays(ends: Sequence[Node | None], shared: Sequence[Leaf], log: NodeLog) -> Iterator[SavedTensor]:
    """The arrays that the logged nodes of a graph keep, or all its nodes if none was logged; `ends` are its outputs."""
    seen = {id(buffer_of(leaf)) for leaf in shared if isinstance(leaf, np.ndarray)}
    for node in _graph(ends):
        number = log.number_of(node)
        if log.ops and number is None:
            continue
        for array in _arrays_of(node.vjp):
            buffer = buffer_of(array)
            if id(buffer) in seen:
                continue
            seen.add(id(buffer))
            made = log.maker_of(buffer)
            op = "the state, or plain NumPy" if made is None else log.ops[made]
            line = "" if number is None else log.line(number if made is None else made)
            yield SavedTensor(op if log.ops else "", array.shape, str(array.dtype), buffer.nbytes, line)


def _graph(ends: Sequence[Node | None]) -> Iterator[Node]:
    """The nodes of the graph that ends in these, each once, without roots."""
    ready, seen = [node for node in ends if node is not None], set[int]()
    while ready:
        node = ready.pop()
        if id(node) not in seen and getattr(node, "parents", None):
            seen.add(id(node))
            ready += node.parents
            yield node


def _arrays_of(pullback: object) -> Iterator[Leaf]:
    """The arrays that a pullback refers to, without those behind other nodes."""
    ready: list[object] = [pullback]
    seen: set[int] = set()
    while ready:
        value = ready.pop()
        if id(value) in seen or isinstance(value, _NOT_FOLLOWED) or isbox(value):
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            yield value
        elif callable(value) and hasattr(value, "__closure__"):
            ready += [*(value.__closure__ or ()), *(getattr(value, "__defaults__", None) or ())]
        else:
            ready += gc.get_referents(value)
