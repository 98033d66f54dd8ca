"""The ops of a subproblem of states and tapes, from the moves that a policy chooses."""

from collections.abc import Iterator
from typing import NamedTuple

from remat.ops import TAPE
from remat.planners.dp.states_or_tapes import Move, MovePolicy, Subproblem
from remat.planners.op_tree import OpTree, RelativeOp, Subtree
from remat.schedule import Advance, Drop, Fetch, Keep, Pullback, Record, Turn

__all__ = ["mixed_ops"]


class Node(NamedTuple):
    """A subproblem, and the level from which its start is fetched if it is kept."""

    sub: Subproblem
    source: str


def mixed_ops(policy: MovePolicy, steps: int, budget: int, level: str) -> OpTree:
    """The ops that reverse `steps` in `budget` by the moves of a policy, with states kept in `level`."""
    return OpTree(Node(Subproblem(False, False, steps, budget), level), lambda node: _expand(node, policy, level))


def _expand(node: Node, policy: MovePolicy, level: str) -> Iterator[RelativeOp | Subtree]:
    (kept, turned, steps, _), source = node
    if steps == 1 or policy.sizes.all_fit(node.sub):
        yield Record, 0, steps
        if not turned:
            yield Turn, 0, 0
        yield Pullback, steps, 0
        return
    move = policy.choose(node.sub)
    right, left = policy.sizes.parts(node.sub, move)
    if move.kind == "hold":
        recorded, right = _join_tapes(policy, right)
        yield Record, 0, recorded
        yield Subtree(recorded, Node(right, TAPE if right.kept else level))
        yield Pullback, recorded, 0
        return
    if not kept:
        yield Keep, 0, level
        source = level
    if move.kind == "keep":
        yield Subtree(0, Node(right, level))
        yield Drop, 0, level
        return
    advanced = move.y - 1 if move.kind == "tape" else move.y
    if advanced:
        yield Advance, 0, advanced
    if move.kind == "tape":
        yield Record, advanced, move.y
    yield Subtree(move.y, Node(right, TAPE if right.kept else level))
    if move.kind == "tape":
        yield Pullback, move.y, advanced
    if left is not None:
        yield Fetch, 0, source
    if not kept:
        yield Drop, 0, level
    if left is not None:
        yield Subtree(0, Node(left, source))


def _join_tapes(policy: MovePolicy, right: Subproblem) -> tuple[int, Subproblem]:
    """The number of consecutive steps whose tapes are stored, to record as one range, and the subproblem after them."""
    recorded = 1
    while not right.kept and right.steps > 1 and not policy.sizes.all_fit(right):
        move = policy.choose(right)
        if move.kind != "hold":
            break
        recorded, right = recorded + 1, policy.sizes.parts(right, Move("hold", 1))[0]
    return recorded, right
