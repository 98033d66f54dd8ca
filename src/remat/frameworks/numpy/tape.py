"""Tapes by autograd: a range of steps recorded as one graph with many roots and many ends, and pulled back in one pass.

Autograd's own `make_vjp` has one root and one end, so that states would have to be packed into its containers, which
cost more than many a step. Here every leaf is a root of its own, and sums of cotangents go on from range to range in
the order in which autograd would have added them.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from autograd.core import JVPNode, VJPNode, VSpace, add_outgrads
from autograd.tracer import box_type_mappings, isbox, new_box, trace_stack
from autograd.util import toposort

from remat.frameworks.numpy.leaves import HEADER

__all__ = ["Tape", "boxable", "new_trace", "pull_back", "root", "split", "tape_size"]

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


@contextmanager
def new_trace() -> Iterator[int]:
    """A trace on top of all others; autograd's own is not closed when something raises."""
    trace_stack.top += 1
    try:
        yield trace_stack.top
    finally:
        trace_stack.top -= 1


def boxable(leaf: Any) -> bool:
    """Whether autograd can trace a leaf: real and complex floats, and what is traced already."""
    if type(leaf) is np.ndarray:
        return leaf.dtype.kind in "fc"
    return type(leaf) in box_type_mappings and not isinstance(leaf, tuple | list | dict)


def root(leaf: Any, trace: int, tangent: Any = None) -> tuple[Any, Any]:
    """The box of a leaf as a root of the trace, and its node; with a tangent, of a forward-mode trace."""
    node = VJPNode.new_root() if tangent is None else JVPNode.new_root(tangent)
    return new_box(leaf, trace, node), node


def split(leaf: Any, trace: int) -> tuple[Any, Any]:
    """The value of a leaf and its node in the trace, or None if it does not depend on the roots."""
    if isbox(leaf) and leaf._trace == trace:
        return leaf._value, leaf._node
    return leaf, None


def pull_back(ends: Sequence[tuple[Any, Any]], sums: dict[Any, tuple[Any, bool]]) -> dict[Any, tuple[Any, bool]]:
    """The cotangents of the roots, from cotangents of the ends, added to the `sums` that roots may have already."""
    end = VJPNode.__new__(VJPNode)
    end.parents = tuple(node for node, _ in ends)
    cotangents = [cotangent for _, cotangent in ends]
    end.vjp = lambda _: cotangents
    sums[end] = (None, False)
    for node in toposort(end):
        if not node.parents:
            continue  # a root: its sum is a result
        cotangent = sums.pop(node)[0]
        for parent, part in zip(node.parents, node.vjp(cotangent), strict=True):
            sums[parent] = add_outgrads(sums.get(parent), part)
    return sums


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
            size += HEADER
            if buffer is thing or id(buffer) not in seen:
                seen.add(id(buffer))
                size += buffer.nbytes
        elif not isinstance(thing, _SHARED):
            size += sys.getsizeof(thing)
            if isinstance(thing, FunctionType):
                stack.extend(thing.__closure__ or ())
                stack.extend(thing.__defaults__ or ())
            else:
                stack.extend(gc.get_referents(thing))
    return size


def _buffer(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
