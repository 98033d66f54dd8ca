"""States or tapes, one level: the moves that every planner of this class chooses from, and what they cost in bytes.

A subproblem is `(kept, turned, steps, budget)`: reverse `steps` steps from the working state, with at most `budget`
bytes of further states and tapes. Either the start is stored already and does not count (problem B), or it is only in
working memory (problem A); either the cotangent is there already (`turned`) or the turn is inside. There are four
moves, y being the number of steps that lie to the left of the part that is reversed first:

    hold   record the first step, store its tape, reverse the other steps, pull the tape back       (A only)
    keep   keep the start, go on as B                                                               (A only)
    split  [A: keep the start,] advance y, reverse the steps from y on, fetch the start, reverse the first y
    tape   [A: keep the start,] advance y-1, record one step and store its tape, reverse the steps from y on, pull the
           tape back, fetch the start, reverse the first y-1

Where tapes contain their step's output (restartable), a stored tape is also a stored start, so that the steps after it
are a B problem, else an A problem. The least number of forward steps obeys a recurrence with one term for each move
(`exact_table`); its bound for any number of steps is in `layer_bound`.
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
    """What to do first: "hold", "keep", "split" or "tape", and how many steps go before the rest."""

    kind: str
    y: int


@dataclass(frozen=True)
class SubproblemSizes:
    """Bytes of a state and of a tape, and whether a tape contains its step's output.

    `early` bytes more than the budget are free before the turn, where there is no cotangent yet.
    """

    state: int
    tape: int
    restartable: bool
    early: int

    def floor(self, turned: bool) -> int:
        """The least budget in which a single step can be reversed."""
        return 0 if turned else -self.early

    def all_fit(self, sub: Subproblem) -> bool:
        """Whether every tape of the subproblem can be held; then no step is run twice."""
        return sub.budget - (sub.steps - 1) * self.tape >= self.floor(sub.turned)

    def parts(self, sub: Subproblem, move: Move) -> tuple[Subproblem, Subproblem | None]:
        """The subproblem to the right, which is reversed first, and the one to the left, if there is any."""
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
    """What decides the moves: the exact table, or the search guided by the bound."""

    sizes: SubproblemSizes

    def choose(self, sub: Subproblem) -> Move:
        """The move for a subproblem in which not all tapes fit."""
