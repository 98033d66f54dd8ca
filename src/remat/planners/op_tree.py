"""A schedule as a tree with shared subtrees (a DAG): each subtree is stored and costed once; a stack streams the ops.

The tree is built from a root and a function that expands a node into ops, relative to the node's start, and smaller
nodes. Steps of a loop are equal, so a node is the same wherever it starts: a million steps need only hundreds of
distinct nodes. The tree is a source for `Schedule`, and `predict` gives its cost. (`predict` is for loops, where the
sizes of a node do not depend on its position. A tree for unequal units has absolute nodes; `simulate` gives its cost.)
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from remat.planners.claim import Prediction
from remat.problem import Loop, Memory
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn

__all__ = ["OpTree", "RelativeOp", "Subtree", "relative"]


class Subtree(NamedTuple):
    """A node inside another node, `offset` steps after the start of the outer one."""

    offset: int
    node: Hashable


RelativeOp = tuple[Any, int, Any]  # an op relative to the start of its node: its class and its two arguments
Item = RelativeOp | Subtree


class _Cost(NamedTuple):
    advances: int
    ranges: int
    moving: float  # seconds of keeping and fetching
    peak: int  # bytes on the device, without what is stored outside the node
    turns: bool  # whether the node contains the turn; if not, a cotangent is in flight from its start


class OpTree:
    """The ops of a whole schedule, streamed; `predict` gives their cost."""

    def __init__(self, root: Hashable, expand: Callable[[Any], Iterable[Item]]) -> None:
        self.root = root
        self.items: dict[Hashable, list[Item]] = {}
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node not in self.items:
                self.items[node] = list(expand(node))
                waiting += [item.node for item in self.items[node] if isinstance(item, Subtree)]

    def __iter__(self) -> Iterator[Op]:
        """The ops, without pairs that drop a state and keep it again at once."""
        last: Op | None = None
        for op in self._walk():
            if isinstance(last, Drop) and isinstance(op, Keep) and (op.state, op.level) == (last.state, last.level):
                last = None
                continue
            if last is not None:
                yield last
            last = op
        if last is not None:
            yield last

    def _walk(self) -> Iterator[Op]:
        stack: list[tuple[int, Iterator[Item]]] = [(0, iter(self.items[self.root]))]
        while stack:
            offset, items = stack[-1]
            item = next(items, None)
            if item is None:
                stack.pop()
            elif isinstance(item, Subtree):
                stack.append((offset + item.offset, iter(self.items[item.node])))
            else:
                op_type, first, second = item
                if op_type is Turn:
                    yield Turn()
                elif isinstance(second, str):
                    yield op_type(first + offset, second)
                else:
                    yield op_type(first + offset, second + offset)

    def predict(self, loop: Loop, memory: Memory) -> Prediction:
        """The cost of the ops, computed once for each distinct node."""
        costs: dict[Hashable, _Cost] = {}
        for node in self._inside_out():
            costs[node] = _cost(self.items[node], costs, loop, memory)
        whole, n = costs[self.root], loop.units
        seconds = whole.advances * loop.forward + n * (loop.record + loop.backward)
        return Prediction(whole.advances, n, whole.peak, seconds + whole.ranges * loop.per_range + whole.moving)

    def _inside_out(self) -> Iterator[Hashable]:
        """Every node after the nodes inside it (postorder)."""
        seen: set[Hashable] = set()
        stack = [(self.root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                yield node
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += [(item.node, False) for item in self.items[node] if isinstance(item, Subtree)]


def relative(op: Op, first: int = 0) -> RelativeOp:
    """`op` relative to a node that starts at `first`."""
    match op:
        case Turn():
            return Turn, 0, 0
        case Keep(state, level) | Fetch(state, level) | Drop(state, level):
            return type(op), state - first, level
        case Pullback(stop, start):
            return Pullback, stop - first, start - first
        case Advance(start, stop) | Record(start, stop):
            return type(op), start - first, stop - first
    raise AssertionError(f"{op!r} is no op of a loop")


def _cost(items: list[Item], costs: dict[Hashable, _Cost], loop: Loop, memory: Memory) -> _Cost:
    """The cost of one node, with the sizes of `schedule.machine`, without what is stored outside the node."""
    state, device = loop.state, memory.device.name
    levels = {level.name: level for level in memory.levels}
    turns = any(costs[item.node].turns if isinstance(item, Subtree) else item[0] is Turn for item in items)
    advances = ranges = peak = stored = 0
    moving = 0.0
    cotangent = 0 if turns else state
    for item in items:
        if isinstance(item, Subtree):
            inner = costs[item.node]
            advances, ranges, moving = advances + inner.advances, ranges + inner.ranges, moving + inner.moving
            live = stored + inner.peak
            cotangent = state if inner.turns else cotangent
        else:
            op_type, first, second = item
            live = stored + state + cotangent
            if op_type is Advance:
                advances += second - first
                live += state
            elif op_type is Record:
                ranges += 1
                stored += (second - first) * loop.tape
                live += (second - first) * loop.tape + state
            elif op_type is Pullback:
                live = stored + 2 * state
                stored -= (first - second) * loop.tape
            elif op_type is Turn:
                cotangent = state
            elif op_type is Keep:
                moving += levels[second].write * state
                stored += state if second == device else 0
                live = stored + state + cotangent
            elif op_type is Fetch and second in levels:
                moving += levels[second].read * state
            elif op_type is Drop:
                stored -= state if second == device else 0
                live = 0
        peak = max(peak, live)
    return _Cost(advances, ranges, moving, peak, turns)
