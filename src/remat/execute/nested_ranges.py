"""A chain's schedule as nested ranges, which run as segments inside segments.

In: the ops of a persistent schedule. Out: items in forward order. An item is a recorded stage, or a range that runs
without a tape and holds the items as which it is recomputed. So

    keep 0; advance 0 2; record 2 3; turn; pullback 3 2;
    fetch 0; drop 0; record 0 1; record 1 2; pullback 2 1; pullback 1 0

is `[Range(0, 2, (0, 1)), 2]`: stages 0 and 1 are one segment, and stage 2 is recorded outright. Recomputing a segment
with segments inside runs exactly these ops: a state is kept as a segment's input, and dropped when that segment is
recomputed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from remat.errors import PlannerError
from remat.ops import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn

__all__ = ["Item", "Range", "nested_ranges"]


@dataclass(frozen=True)
class Range:
    """Stages start..stop-1, which run without a tape at first and are recomputed as `items`."""

    start: int
    stop: int
    items: tuple["Item", ...]

    def rest_from(self, start: int) -> "Range":
        """The part of the range from stage `start` on, with the same nesting."""
        items: list[Item] = []
        for item in self.items:
            if not isinstance(item, Range):
                items += [item] if item >= start else []
            elif item.stop > start:
                items.append(item if item.start >= start else item.rest_from(start))
        return Range(start, self.stop, tuple(items))


Item = int | Range


def nested_ranges(schedule: Iterable[Op], stages: int) -> tuple[Item, ...]:
    """The items of a chain's schedule; a schedule that is not persistent raises a PlannerError."""
    ops = _Ops(schedule)
    items = _items(ops, 0, stages)
    if stages == 0:
        ops.skip(Turn())
    if ops.current is not None:
        raise ops.error()
    return items


def _items(ops: "_Ops", start: int, stop: int) -> tuple[Item, ...]:
    """The items of stages start..stop-1; this reads their ops, up to the pullback of stage `start`."""
    items: list[Item] = []
    while start < stop:
        ops.skip(Fetch(start, ops.level_of(Fetch)))
        ops.skip(Keep(start, ops.level_of(Keep)))
        ops.skip(Drop(start, ops.level_of(Drop)))
        op = ops.run()
        if op.start != start or op.stop > stop:
            raise ops.error()
        # An advanced range is recomputed after everything to its right is pulled back, so its items are read below.
        items += [Range(start, op.stop, ())] if isinstance(op, Advance) else range(start, op.stop)
        start = op.stop
    for place in reversed(range(len(items))):
        item = items[place]
        if isinstance(item, Range):
            items[place] = Range(item.start, item.stop, _items(ops, item.start, item.stop))
            continue
        ops.skip(Turn())
        ops.pull_back(item)
    return tuple(items)


class _Ops:
    """A reader of ops, with a look-ahead of one."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self._rest: Iterator[Op] = iter(ops)
        self.current: Op | None = next(self._rest, None)

    def level_of(self, kind: type[Keep] | type[Fetch] | type[Drop]) -> str:
        """The level of the current op if it is of this kind, else an empty string."""
        return self.current.level if isinstance(self.current, kind) else ""

    def skip(self, op: Op) -> None:
        """Go past the current op if it equals this one."""
        if self.current == op:
            self.current = next(self._rest, None)

    def run(self) -> Advance | Record:
        """Take the current op, which must run stages."""
        op = self.current
        if not isinstance(op, Advance | Record):
            raise self.error()
        self.current = next(self._rest, None)
        return op

    def pull_back(self, stage: int) -> None:
        """Go past the pullback of a stage; the pullback of several stages stays current until its first stage."""
        op = self.current
        if not isinstance(op, Pullback) or not op.start <= stage < op.stop:
            raise self.error()
        if op.start == stage:
            self.current = next(self._rest, None)

    def error(self) -> PlannerError:
        """The error for a schedule that is not a nest of ranges."""
        return PlannerError(
            f"the plan's schedule cannot be run as segments inside segments: {self.current} comes where a range must "
            "be recorded or pulled back. Plans of the chain planners can"
        )
