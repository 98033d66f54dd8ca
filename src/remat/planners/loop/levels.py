"""Levels: states in several levels with read and write costs, the H-Revolve problem.

Herrmann & Pallez 2020, "H-Revolve: a framework for adjoint computation on synchronous hierarchical platforms", ACM
TOMS 46; the recurrence is in `dp/hrevolve.py`. Steps are recorded and pulled back one at a time; no tape is stored for
later. Long loops are planned in groups of g steps, each reversed by the binomial schedule in part of the first level,
or with all levels as one pool (`pooled.py`), whichever is faster; the claim is then a factor over a bound.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import ClassVar, NamedTuple

from remat.planners.bounds import level_seconds
from remat.planners.claim import Claim, Prediction
from remat.planners.dp.hrevolve import HRevolveTable, StoreCost
from remat.planners.loop.pooled import best_pool
from remat.planners.op_tree import OpTree, RelativeOp, Subtree, relative
from remat.planners.plan import Plan
from remat.planners.planner import UNKNOWN_LENGTH, Planner, infeasible
from remat.problem import Level, Loop, Memory
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Schedule, Turn
from remat.schedule.revolve import advances, reverse

__all__ = ["Levels"]

MOST_GROUPED = 2_000_000  # the most steps to plan in groups: the ops of a group are stored
EXACT = 600_000_000  # the most additions for the exact recurrence: a second or two


@dataclass(frozen=True)
class Levels(Planner[Loop]):
    """Keeps each state in the level that makes the whole reversal fastest; levels are ordered by their cost."""

    name: ClassVar[str] = "levels"
    summary: ClassVar[str] = "states in several levels with read and write costs (H-Revolve)"
    problem_type: ClassVar[type[Loop]] = Loop

    def refuses(self, problem: Loop, memory: Memory) -> str | None:
        """The reason to refuse, unless the length is known."""
        return UNKNOWN_LENGTH if problem.steps is None else None

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan of least predicted time."""
        n = problem.units
        ranked = sorted(memory.levels, key=lambda level: (level.read + level.write, level is not memory.device))
        slots = [min(_slots(problem, level, memory), max(n - 1, 0)) for level in ranked]
        _check_memory(problem, memory, sum(slots))
        on_device = slots[ranked.index(memory.device)]
        group, inside = _group(n, slots, ranked.index(memory.device))
        candidates: list[tuple[Prediction, Iterable[Op]]] = []
        if group > 1 and (pool := best_pool(problem, memory, ranked, slots)) is not None:
            candidates.append((pool[1], pool[0]))
        if group == 1 or inside:
            slots[ranked.index(memory.device)] -= inside
            slots = [min(count, -(-n // group)) for count in slots]
            tree = _Tree(problem, memory, ranked, slots, group, inside)
            nested = OpTree(tree.root(), tree.expand)
            candidates.append((nested.predict(problem, memory), nested))
        prediction, ops = min(candidates, key=lambda pair: pair[0].seconds)
        ordered = all(a.read <= b.read and a.write <= b.write for a, b in pairwise(ranked))
        within = "states in levels" if ordered else "nested levels"
        if memory.device.capacity is not None:
            within += f", at most {on_device} in {memory.device.name}"
        claim = Claim(1.0, within)
        if group > 1:
            bound = level_seconds(problem, memory)
            claim = Claim(max(prediction.seconds / bound, 1.0) if bound else None, "states in levels")
        return Plan(problem, memory, self.name, claim, prediction, Schedule(ops))


class _Node(NamedTuple):
    """Reverse `length` + 1 groups with the slots of a column of the table.

    The start is `stored` in that level, or only in working memory.
    """

    stored: bool
    column: int
    length: int
    turned: bool
    short: bool  # whether the first group is shorter than the others


class _Tree:
    """Expands the subproblems of one problem into ops, as the recurrence decides."""

    def __init__(
        self, loop: Loop, memory: Memory, ranked: list[Level], slots: list[int], group: int, inside: int
    ) -> None:
        self.loop, self.device, self.group, self.inside = loop, memory.device.name, group, inside
        self.names = [level.name for level in ranked]
        self.groups = max(-(-loop.units // group), 1)
        self.first = loop.units - (self.groups - 1) * group
        stores = [
            StoreCost(count, level.write * loop.state, level.read * loop.state)
            for count, level in zip(slots, ranked, strict=True)
        ]
        again = advances(group, inside) * loop.forward if group > 1 else 0.0
        one = group * (loop.record + loop.backward + loop.per_range) + again
        self.best = HRevolveTable(self.groups, stores, group * loop.forward, one)

    def root(self) -> _Node:
        last = len(self.names) - 1
        column = self.best.column(last, self.best.slots[last])
        return _Node(False, column, self.groups - 1, False, self.first < self.group)

    def expand(self, node: _Node) -> Iterator[RelativeOp | Subtree]:
        stored, column, length, turned, short = node
        if length == 0:
            if stored:
                yield Drop, 0, self._name(column)
            steps = self.first if short else self.group
            if self.loop.units:
                yield from map(relative, reverse(0, steps, self.inside, 1, self.device, turn=not turned))
            else:
                yield relative(Turn())
            return
        level, slots = self.best.place(column)
        name, below = self.names[level], self.best.column(level, 0)
        if self.best.time(False, below, length) <= self.best.time(stored, column, length):
            if stored:
                yield Drop, 0, name
            yield Subtree(0, _Node(False, below, length, turned, short))
            return
        if not stored:
            yield Keep, 0, name
        j = self.best.split(column, length)
        steps = j * self.group - (self.group - self.first if short else 0)
        yield Advance, 0, steps
        yield Subtree(steps, _Node(False, self.best.column(level, slots - 1), length - j, turned, False))
        yield Fetch, 0, name
        yield Subtree(0, _Node(True, column, j - 1, True, short))

    def _name(self, column: int) -> str:
        return self.names[self.best.place(column)[0]]


def _slots(loop: Loop, level: Level, memory: Memory) -> int:
    """How many states fit into the level; on the device, next to the working set."""
    if level.slots is not None:
        return level.slots
    if level.capacity is None:
        return loop.units
    if level is not memory.device:
        return level.capacity // loop.state
    working_states = 3 if loop.units > 2 else 2
    return max((level.capacity - loop.tape) // loop.state - working_states, 0)


def _check_memory(loop: Loop, memory: Memory, slots: int) -> None:
    """Raise an InfeasibleError unless the working set fits the device and the initial state fits some level."""
    n, device = loop.units, memory.device
    if device.capacity is not None:
        states = min(n + 1, 3) + (n > 2 and slots == 0)
        least = states * loop.state + min(n, 1) * loop.tape
        if device.capacity < least:
            raise infeasible(loop, device, least, f"a working set of {states} states and a tape")
    elif slots == 0 and n > 1 and device.slots is not None:
        raise infeasible(loop, device, 1, "the initial state is kept somewhere")


def _group(units: int, slots: list[int], device: int) -> tuple[int, int]:
    """The number of steps that are planned as one group, and of device slots that reverse a group."""
    if units**2 * (sum(slots) + 1) <= 2 * EXACT:
        return 1, 0
    group = 2
    if units > MOST_GROUPED:
        return group, 0  # the ops of such long groups would take too much memory: all levels become one pool
    while (groups := -(-units // group)) ** 2 * (sum(min(count, groups) for count in slots) + 1) > 2 * EXACT:
        group *= 2
    return group, min(-(-slots[device] // 2), isqrt(2 * group) + 1)
