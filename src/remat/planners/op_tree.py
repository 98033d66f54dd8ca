"""A schedule as subproblems inside subproblems: stored once each, streamed with a stack, costed by adding up.

In: a root and a function that gives the ops of any subproblem relative to its start, with smaller subproblems among
them. Subproblems repeat so much that a million steps need hundreds of them. Out: a source for `Schedule`, and its cost.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from remat.planners.claim import Prediction
from remat.problem import Loop, Memory
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn

__all__ = ["OpTree", "RelativeOp", "Subtree", "relative"]


class Subtree(NamedTuple):
    """A subproblem inside another, `offset` steps after its start."""

    offset: int
    node: Hashable


RelativeOp = tuple[Any, int, Any]  # an op relative to its subproblem: its class and its two arguments
ItemRef = RelativeOp | Subtree


class _Cost(NamedTuple):
    advances: int
    ranges: int
    moving: float  # seconds of keeping and fetching
    peak: int  # bytes on the device, beside what is held around the subproblem
    turns: bool  # whether the turn is inside; if not, a cotangent is in flight from the start


class OpTree:
    """The ops of a whole schedule, streamed; `predict` says what they cost."""

    def __init__(self, root: Hashable, expand: Callable[[Any], Iterable[ItemRef]]) -> None:
        self.root = root
        self.items: dict[Hashable, list[ItemRef]] = {}
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node not in self.items:
                self.items[node] = list(expand(node))
                waiting += [item.node for item in self.items[node] if isinstance(item, Subtree)]

    def __iter__(self) -> Iterator[Op]:
        """The ops, but for a state that would be dropped and kept again at once."""
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
        stack: list[tuple[int, Iterator[ItemRef]]] = [(0, iter(self.items[self.root]))]
        while stack:
            offset, items = stack[-1]
            item = next(items, None)
            if item is None:
                stack.pop()
            elif isinstance(item, Subtree):
                stack.append((offset + item.offset, iter(self.items[item.node])))
            else:
                kind, first, second = item
                if kind is Turn:
                    yield Turn()
                elif isinstance(second, str):
                    yield kind(first + offset, second)
                else:
                    yield kind(first + offset, second + offset)

    def predict(self, loop: Loop, memory: Memory) -> Prediction:
        """What the ops cost, counted once for each distinct subproblem."""
        costs: dict[Hashable, _Cost] = {}
        for node in self._inside_out():
            costs[node] = _cost(self.items[node], costs, loop, memory)
        whole, n = costs[self.root], loop.units
        seconds = whole.advances * loop.forward + n * (loop.record + loop.backward)
        return Prediction(whole.advances, n, whole.peak, seconds + whole.ranges * loop.per_range + whole.moving)

    def _inside_out(self) -> Iterator[Hashable]:
        """Every subproblem after those inside it."""
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
    """`op` relative to a subproblem that starts at `first`."""
    match op:
        case Turn():
            return Turn, 0, 0
        case Keep(state, level) | Fetch(state, level) | Drop(state, level):
            return type(op), state - first, level
        case Pullback(stop, start):
            return Pullback, stop - first, start - first
        case Advance(start, stop) | Record(start, stop):
            return type(op), start - first, stop - first


def _cost(items: list[ItemRef], costs: dict[Hashable, _Cost], loop: Loop, memory: Memory) -> _Cost:
    """Add up one subproblem; the sizes are those of `schedule.machine`, with what is held around it left out."""
    state, device = loop.state, memory.device.name
    levels = {level.name: level for level in memory.levels}
    turns = any(costs[item.node].turns if isinstance(item, Subtree) else item[0] is Turn for item in items)
    advances = ranges = peak = held = 0
    moving = 0.0
    cotangent = 0 if turns else state
    for item in items:
        if isinstance(item, Subtree):
            part = costs[item.node]
            advances, ranges, moving = advances + part.advances, ranges + part.ranges, moving + part.moving
            live = held + part.peak
            cotangent = state if part.turns else cotangent
        else:
            kind, first, second = item
            live = held + state + cotangent
            if kind is Advance:
                advances += second - first
                live += state
            elif kind is Record:
                ranges += 1
                held += (second - first) * loop.tape
                live += (second - first) * loop.tape + state
            elif kind is Pullback:
                live = held + 2 * state
                held -= (first - second) * loop.tape
            elif kind is Turn:
                cotangent = state
            elif kind is Keep:
                moving += levels[second].write * state
                held += state if second == device else 0
                live = held + state + cotangent
            elif kind is Fetch and second in levels:
                moving += levels[second].read * state
            elif kind is Drop:
                held -= state if second == device else 0
                live = 0
        peak = max(peak, live)
    return _Cost(advances, ranges, moving, peak, turns)
