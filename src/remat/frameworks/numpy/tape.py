"""Autograd tapes: a range of steps as one graph with many roots and many outputs, pulled back in one pass.

Autograd's own `make_vjp` has one root and one output, so a state would have to be packed into one of its containers,
which takes longer than many steps do. Here every leaf is its own root. Sums of cotangents are passed from range to
range, and terms are added in the same order as autograd adds them in a plain loop.

Names that `autograd.extend` does not export (`trace`, `trace_stack`, `new_box`, `toposort`, `add_outgrads`, and
`_trace`, `_node`, `_value` of a box) are used in this file only, except for `getval` and `isbox`. Checked with autograd
1.9.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

import numpy as np
from autograd.core import add_outgrads
from autograd.extend import JVPNode, VJPNode, VSpace
from autograd.tracer import Node, box_type_mappings, isbox, new_box, trace, trace_stack
from autograd.util import toposort

from remat.frameworks.numpy.leaves import header
from remat.pytree import Leaf, PyTree

__all__ = [
    "ActiveTraces",
    "CapturedRoots",
    "Node",
    "NodeSums",
    "RecordedRange",
    "Tape",
    "box_leaves",
    "buffer_of",
    "fresh_trace",
    "is_boxable",
    "is_closed_box",
    "is_result",
    "plain_value",
    "pull_back",
    "tape_size",
    "unbox",
]

NodeCotangents = Sequence[tuple[Node, Leaf]]  # nodes of outputs with their cotangents
Sum = tuple[Leaf, bool] | None  # a cotangent and whether it may be added to in place; None is zero
NodeSums = dict[Node, tuple[Leaf, bool]]


@dataclass(slots=True)
class Tape:
    """The graph of a few steps: the nodes of its inputs and outputs, by leaf; None for a leaf without a gradient."""

    start: int
    stop: int
    carry_in: list[Node | None] = field(default_factory=list)
    xs: list[list[Node | None]] = field(default_factory=list)  # by step, then by leaf
    ys: list[list[Node | None]] = field(default_factory=list)
    carry_out: list[Node | None] = field(default_factory=list)


@dataclass(slots=True)
class RecordedRange:
    """A recorded range of steps: consecutive graphs, and the nodes of captured values, which they share."""

    start: int
    stop: int
    captured: list[Node | None]
    tapes: list[Tape] = field(default_factory=list)

    def add(self, start: int, stop: int) -> Tape:
        """Append a new tape for the next steps."""
        self.tapes.append(Tape(start, stop))
        return self.tapes[-1]


_traces = count(1)
_open: set[float] = set()  # the numbers of our own traces that are open


@contextmanager
def fresh_trace() -> Iterator[float]:
    """A context with a new innermost trace, which is closed even after an error, unlike autograd's own.

    Autograd numbers traces by their depth, so a box that a step stored in an earlier trace would pass for one of the
    new trace. Here every trace has a unique number: its depth plus a fraction that counts traces.
    """
    trace_stack.top += 1
    number = trace_stack.top + next(_traces) % 2**40 * 2.0**-41
    _open.add(number)
    try:
        yield number
    finally:
        _open.discard(number)
        trace_stack.top -= 1


class ActiveTraces:
    """The traces that are open now, our own and autograd's; their boxes are captured.

    Closure conversion must rebind the boxes of open traces, since gradients flow to them, and must leave alone boxes
    that an earlier `grad` left in a cache or a log. A box has only the number of its trace, and autograd numbers traces
    by their depth: `trace_stack.new_trace` counts up on entry and down on exit, so the next `grad` gets the number of
    the last one. Two traces with the same number differ in their root: the `parents` of a box's node lead to the node
    that `trace` was called with, its `start_node`. Autograd keeps that only in a local variable:

        def trace(start_node, fun, x):
            with trace_stack.new_trace() as t:
                start_box = new_box(x, t, start_node)
                end_box = fun(start_box)      # <- we are somewhere below this line

    So we walk the call stack, once for each call of a loop or segment, and read `t` and `start_node` from every frame
    that runs `trace`. The alternative, replacing `trace` or `new_trace` by a version that registers roots, would change
    autograd for the whole program and miss every `grad` that was entered before. If autograd renames a local variable,
    no trace seems to be open and gradients are lost; tests/frameworks/numpy/test_private_api.py fails then.

    Our own traces need none of this: `fresh_trace` gives each a unique number that is not an integer. Nodes of forward
    mode have no `parents`, so its boxes are accepted by their number alone.
    """

    def __init__(self) -> None:
        self._roots: dict[float, Node] = {}  # of autograd's traces, by number
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code is trace.__code__ and "t" in frame.f_locals:
                self._roots.setdefault(frame.f_locals["t"], frame.f_locals["start_node"])
            frame = frame.f_back  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._roots or _open)

    def accepts(self, leaf: Leaf) -> bool:
        """Whether a leaf is a box of an open trace; a box that has outlived its trace, as in a cache, is not."""
        if not isbox(leaf):
            return False
        number, node = leaf._trace, leaf._node
        if number % 1:  # a trace of our own
            return number in _open
        if number not in self._roots:
            return False
        while getattr(node, "parents", None):
            node = node.parents[0]
        return isinstance(node, JVPNode) or node is self._roots[number]


def is_closed_box(value: object) -> bool:
    """Whether a value is a box of a closed trace of our own, which a user's container has kept."""
    return isbox(value) and value._trace % 1 != 0 and value._trace not in _open  # type: ignore[attr-defined]


def plain_value(value: Leaf) -> Leaf:
    """The value inside any boxes of closed traces."""
    while is_closed_box(value):
        value = value._value
    return value


def is_result(box: Leaf) -> bool:
    """Whether a box is the result of an op, and not a root: a value that the caller differentiates with respect to."""
    return bool(getattr(box._node, "parents", None))


def is_boxable(leaf: Leaf) -> bool:
    """Whether autograd can trace a leaf: real and complex floats, and boxes of an outer trace."""
    if type(leaf) is np.ndarray:
        return leaf.dtype.kind in "fc"
    return type(leaf) in box_type_mappings and not isinstance(leaf, tuple | list | dict)


def root(leaf: Leaf, number: float, tangent: Leaf = None) -> tuple[PyTree, PyTree]:
    """Box a leaf as a root of the trace; return box and node. With a tangent, in forward mode."""
    node = VJPNode.new_root() if tangent is None else JVPNode.new_root(tangent)
    return new_box(leaf, number, node), node


def box_leaves(
    leaves: Sequence[Leaf], needs_grad: Sequence[bool], number: float, tangents: Sequence[Leaf] | None = None
) -> tuple[list[Leaf], list[Leaf]]:
    """The leaves, boxed as roots of a trace where a gradient is needed and possible, and their nodes (or None).

    `tangents`, for forward mode, has one tangent for each leaf whose `needs_grad` is true.
    """
    rest = iter(tangents or ())
    boxes, nodes = [], []
    for leaf, needed in zip(leaves, needs_grad, strict=True):
        tangent = next(rest) if needed and tangents is not None else None
        box, node = root(leaf, number, tangent) if needed and is_boxable(leaf) else (leaf, None)
        boxes.append(box)
        nodes.append(node)
    return boxes, nodes


class CapturedRoots:
    """Captured values as roots of one trace after another; there may be thousands, so each is boxed only once."""

    def __init__(self, leaves: Sequence[Leaf], needs_grad: Sequence[bool]) -> None:
        self.boxes, self.nodes = box_leaves(leaves, needs_grad, 0.0)
        self._boxed = [box for box, node in zip(self.boxes, self.nodes, strict=True) if node is not None]

    def move_to(self, number: float) -> None:
        """Make all boxes belong to this trace."""
        for box in self._boxed:
            box._trace = number


def unbox(leaf: Leaf, number: float) -> tuple[PyTree, PyTree]:
    """The value of a leaf, and its node in the trace or None if it does not depend on the roots."""
    if isbox(leaf) and leaf._trace == number:
        return leaf._value, leaf._node
    return leaf, None


def pull_back(groups: Sequence[NodeCotangents], sums: NodeSums, *, used_up: bool = False) -> NodeSums:
    """Compute the cotangents of the roots from those of outputs, and add them to the `sums` that roots already have.

    `groups` has the outputs of each step, in step order. A plain loop pulls back all steps after step i before the
    cotangents of step i's outputs arrive. To keep this order of additions, and so every bit of the sums, each group
    gets a node whose parents are its outputs and the node of the previous group: `toposort` then visits a group only
    after all later groups. With `used_up`, a node drops what it holds as soon as it is pulled back.
    """
    last = None
    for group in groups:
        last = _GroupNode(group if last is None else [(last, None), *group])  # `toposort` takes the last parent first
    sums[last] = (None, False)  # its pullback ignores its own cotangent
    for node in toposort(last):
        if not node.parents:
            continue  # a root: its sum is a result
        cotangent = sums.pop(node)[0]  # popped, to be freed as soon as the parents have theirs
        for parent, parent_bar in zip(node.parents, node.vjp(cotangent), strict=True):
            sums[parent] = add_outgrads(sums.get(parent), parent_bar)
        if used_up:
            node.vjp = None  # `toposort` keeps all nodes alive until the end
    return sums


class _GroupNode(VJPNode):  # type: ignore[misc]
    """A node whose parents are outputs of the graph, and whose pullback returns their cotangents."""

    def __init__(self, outputs: NodeCotangents) -> None:
        cotangents = [cotangent for _, cotangent in outputs]
        self.parents, self.vjp = tuple(node for node, _ in outputs), lambda _: cotangents


# Objects that exist without the tape: neither counted nor followed.
_SHARED = (type, ModuleType, CodeType, BuiltinFunctionType, VSpace, str, int, bool, np.dtype, type(None))


def tape_size(tape: object, shared: Sequence[Leaf]) -> int:
    """Bytes that a tape keeps alive: all arrays and Python objects that it refers to, except `shared` arrays."""
    seen = {id(buffer_of(leaf)) for leaf in shared if isinstance(leaf, np.ndarray)}
    size = 0
    stack: list[Leaf] = [tape]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            buffer = buffer_of(value)
            size += header(value)
            if buffer is value or id(buffer) not in seen:
                seen.add(id(buffer))
                size += buffer.nbytes
        elif not isinstance(value, _SHARED):
            size += sys.getsizeof(value)
            if isinstance(value, FunctionType):
                size += sys.getsizeof(value.__closure__) if value.__closure__ else 0
                stack.extend(value.__closure__ or ())
                stack.extend(value.__defaults__ or ())
            else:
                stack.extend(gc.get_referents(value))
    return size


def buffer_of(array: Leaf) -> PyTree:
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
