"""Tapes by autograd: a range of steps recorded as one graph with many roots and many ends, and pulled back in one pass.

Autograd's own `make_vjp` has one root and one end, so that states would have to be packed into its containers, which
cost more than many a step. Here every leaf is a root of its own, and sums of cotangents go on from range to range in
the order in which autograd would have added them.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np
from autograd.core import JVPNode, VJPNode, VSpace, add_outgrads
from autograd.tracer import Box, Node, box_type_mappings, isbox, new_box, trace, trace_stack
from autograd.util import toposort

from remat.frameworks.numpy.leaves import header, unpack

__all__ = ["ActiveTraces", "Tape", "box_leaves", "fresh_trace", "is_boxable", "pull_back", "tape_size", "unbox"]

Ends = Sequence[tuple[Any, Any]]  # nodes with their cotangents
Sum = tuple[Any, bool] | None  # a cotangent and whether it may be added to in place; None is zero


@dataclass(slots=True)
class Tape:
    """A recorded range: the nodes of what went in and of what came out; None where no gradient flows."""

    start: int
    stop: int
    carry_in: list[Any]
    captured: list[Any]
    xs: list[list[Any]] = field(default_factory=list)  # by step, then by leaf
    ys: list[list[Any]] = field(default_factory=list)
    carry_out: list[Any] = field(default_factory=list)


_traces = count(1)
_open: set[float] = set()


@contextmanager
def fresh_trace() -> Iterator[float]:
    """A trace on top of all others; autograd's own is not closed when something raises.

    Autograd gives the number of a trace that has ended to the next one, so that a box which a step has hidden somewhere
    would pass for one of the new trace. Here each has its own number, a little above that of its level.
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
    """The traces that are open now: ours, and autograd's, which are found where they are on the stack of calls.

    The number of a trace of autograd proves nothing: the next one gets the same. Its root does.
    """

    opaque_types: ClassVar[tuple[type, ...]] = (np.ndarray, np.generic, Box, Node)
    atomic_types: ClassVar[frozenset[type]] = frozenset({np.ndarray, np.float64, np.float32})
    unpack = staticmethod(unpack)

    def __init__(self) -> None:
        self._roots: dict[float, Any] = {}
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code is trace.__code__ and "t" in frame.f_locals:
                self._roots.setdefault(frame.f_locals["t"], frame.f_locals["start_node"])
            frame = frame.f_back  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._roots or _open)

    def visit(self, value: Any, name: str) -> None:
        """Nothing else is looked for."""

    def accepts(self, leaf: Any) -> bool:
        """Whether a leaf is a box of an open trace: one that a step or a former call left somewhere is not."""
        if not isbox(leaf):
            return False
        number, node = leaf._trace, leaf._node
        if number % 1:
            return number in _open
        if number not in self._roots:
            return False
        while getattr(node, "parents", None):
            node = node.parents[0]
        return isinstance(node, JVPNode) or node is self._roots[number]


def is_boxable(leaf: Any) -> bool:
    """Whether autograd can trace a leaf: real and complex floats, and what is traced already."""
    if type(leaf) is np.ndarray:
        return leaf.dtype.kind in "fc"
    return type(leaf) in box_type_mappings and not isinstance(leaf, tuple | list | dict)


def root(leaf: Any, number: float, tangent: Any = None) -> tuple[Any, Any]:
    """The box of a leaf as a root of the trace, and its node; with a tangent, of a forward-mode trace."""
    node = VJPNode.new_root() if tangent is None else JVPNode.new_root(tangent)
    return new_box(leaf, number, node), node


def box_leaves(
    leaves: Sequence[Any], wanted: Sequence[bool], number: float, tangents: Sequence[Any] | None = None
) -> tuple[list[Any], list[Any]]:
    """Leaves as roots of a trace where wanted and possible, and their nodes; `tangents` are of the wanted, in order."""
    rest = iter(tangents or ())
    boxes, nodes = [], []
    for leaf, want in zip(leaves, wanted, strict=True):
        tangent = next(rest) if want and tangents is not None else None
        box, node = root(leaf, number, tangent) if want and is_boxable(leaf) else (leaf, None)
        boxes.append(box)
        nodes.append(node)
    return boxes, nodes


def unbox(leaf: Any, number: float) -> tuple[Any, Any]:
    """The value of a leaf and its node in the trace, or None if it does not depend on the roots."""
    if isbox(leaf) and leaf._trace == number:
        return leaf._value, leaf._node
    return leaf, None


def pull_back(groups: Sequence[Ends], sums: dict[Any, tuple[Any, bool]]) -> dict[Any, tuple[Any, bool]]:
    """The cotangents of the roots, from cotangents of ends, added to the `sums` that roots may have already.

    The ends come in groups, one for each step in the order of steps. A chain of nodes stands for them, so that the
    ends of a step wait until all that follows it is pulled back.
    """
    end = None
    for group in groups:
        before, end = end, VJPNode.__new__(VJPNode)
        earlier = () if before is None else ((before, None),)
        end.parents = tuple(node for node, _ in (*earlier, *group))  # `toposort` takes the last parent first
        end.vjp = _constant([cotangent for _, cotangent in (*earlier, *group)])
    sums[end] = (None, False)
    for node in toposort(end):
        if not node.parents:
            continue  # a root: its sum is a result
        cotangent = sums.pop(node)[0]
        for parent, part in zip(node.parents, node.vjp(cotangent), strict=True):
            sums[parent] = add_outgrads(sums.get(parent), part)
    return sums


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


_SHARED = (type, ModuleType, CodeType, BuiltinFunctionType, VSpace, str, int, bool, np.dtype, type(None))


def tape_size(tape: Tape, shared: Sequence[Any]) -> int:
    """Bytes that a tape holds: all arrays and Python objects below its nodes, but for those that are `shared`."""
    seen = {id(_buffer(leaf)) for leaf in shared if isinstance(leaf, np.ndarray)}
    size = 0
    stack: list[Any] = [tape]
    while stack:
        thing = stack.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            buffer = _buffer(thing)
            size += header(thing)
            if buffer is thing or id(buffer) not in seen:
                seen.add(id(buffer))
                size += buffer.nbytes
        elif not isinstance(thing, _SHARED):
            size += sys.getsizeof(thing)
            if isinstance(thing, FunctionType):
                size += sys.getsizeof(thing.__closure__) if thing.__closure__ else 0
                stack.extend(thing.__closure__ or ())
                stack.extend(thing.__defaults__ or ())
            else:
                stack.extend(gc.get_referents(thing))
    return size


def _buffer(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
