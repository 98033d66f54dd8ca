"""States or tapes in one level: the moves that planners of this class choose from, and what they cost in bytes.

A subproblem is `(kept, turned, steps, budget)`: reverse `steps` steps from the working state, with at most `budget`
bytes of further states and tapes. The start is either already stored and does not count (problem B), or it is only in
working memory (problem A). The cotangent is either already there (`turned`), or the turn is inside the subproblem.
There are four moves, where y is the number of steps to the left of the part that is reversed first:

    hold   record the first step, store its tape, reverse the other steps, pull the tape back       (A only)
    keep   keep the start, continue as B                                                            (A only)
    split  [A: keep the start,] advance y, reverse the steps from y on, fetch the start, reverse the first y
    tape   [A: keep the start,] advance y-1, record one step and store its tape, reverse the steps from y on, pull the
           tape back, fetch the start, reverse the first y-1

If tapes contain their step's output (restartable), a stored tape is also a stored start, so the steps after it are a B
problem; otherwise they are an A problem. The least number of forward steps obeys a recurrence with one term per move
(`exact_table`); `layer_bound` has its bound for any number of steps.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["Move", "MovePolicy", "Subproblem", "SubproblemSizes"]


class Subproblem(NamedTuple):
    """A subproblem of reversing steps with states or tapes."""

    kept: bool
    turned: bool
    steps: int
    budget: int


class Move(NamedTuple):
    """What to do first: "hold", "keep", "split" or "tape", and the number of steps y before the rest."""

    kind: str
    y: int


@dataclass(frozen=True)
class SubproblemSizes:
    """Bytes of a state and of a tape, and whether a tape contains its step's output.

    Before the turn there is no cotangent yet, so `early` bytes more than the budget are free.
    """

    state: int
    tape: int
    restartable: bool
    early: int

    def floor(self, turned: bool) -> int:
        """The least budget in which a single step can be reversed."""
        return 0 if turned else -self.early

    def all_fit(self, sub: Subproblem) -> bool:
        """Whether every tape of the subproblem fits; then no step runs twice."""
        return sub.budget - (sub.steps - 1) * self.tape >= self.floor(sub.turned)

    def parts(self, sub: Subproblem, move: Move) -> tuple[Subproblem, Subproblem | None]:
        """The subproblem to the right, which is reversed first, and the one to the left, or None."""
        kept, turned, steps, budget = sub
        after_tape = self.restartable
        charge = 0 if kept else self.state  # for keeping the start
        if move.kind == "hold":
            return Subproblem(after_tape, turned, steps - 1, budget - self.tape), None
        if move.kind == "keep":
            return Subproblem(True, turned, steps, budget - self.state), None
        if move.kind == "split":
            return Subproblem(False, turned, steps - move.y, budget - charge), Subproblem(kept, True, move.y, budget)
        right = Subproblem(after_tape, turned, steps - move.y, budget - charge - self.tape)
        return right, Subproblem(kept, True, move.y - 1, budget) if move.y > 1 else None


class MovePolicy(Protocol):
    """Decides the moves: the exact table, or the search guided by the bound."""

    sizes: SubproblemSizes

    def choose(self, sub: Subproblem) -> Move:
        """The move for a subproblem in which not all tapes fit."""
