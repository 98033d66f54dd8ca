"""The ops of a persistent schedule of a chain, from the moves that a table chooses.

A state that will be used again is kept before the sweep leaves it, and dropped when its stage is recorded: from then on
the tape holds it, or it is not needed. Keeping takes no extra memory, since states are shared.
"""

from collections.abc import Iterator

from remat.planners.dp.chain_parts import ChainTable, Part
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn

__all__ = ["chain_ops"]


def chain_ops(table: ChainTable, units: int, level: str) -> Iterator[Op]:
    """The ops that reverse `units` stages, keeping states in `level`."""
    if units == 0:
        yield Turn()
        return
    todo: list[Part | Pullback] = [table.whole()]
    working: int | None = 0
    kept: set[int] = set()
    while todo:
        item = todo.pop()
        if isinstance(item, Pullback):
            if item.stop == units:
                yield Turn()
            yield item
            working = None
            continue
        start, move = item.start, table.choose(item)
        if working != start:
            yield Fetch(start, level)
        if move.left is not None:
            assert move.right is not None
            if start not in kept:
                kept.add(start)
                yield Keep(start, level)
            working = move.right.start
            yield Advance(start, working)
            todo += [move.left, move.right]
        else:
            assert move.option is not None
            if start in kept:
                kept.remove(start)
                yield Drop(start, level)
            yield Record(start, start + 1, move.option)
            working = start + 1
            todo.append(Pullback(start + 1, start))
            if move.right is not None:
                todo.append(move.right)
