"""States or tapes, one level: the choices that every planner of this class makes, and their sizes.

A subproblem is `(kept, turned, steps, budget)`: reverse so many steps from the working state, which is also kept free
of charge (B in the literature's recurrences) or not (A), after the turn or with the turn inside, holding at most
`budget` bytes. It is reversed by one of four moves, y being the number of steps before the part that comes first:

    hold   record the first step, hold its tape, reverse the rest, pull the tape back              (A only)
    keep   keep the start, go on as B                                                               (A only)
    split  [A: keep the start,] advance y, reverse the rest, fetch the start, reverse the first y
    tape   [A: keep the start,] advance y-1, record one step and hold its tape, reverse the rest, pull the tape back,
           fetch the start, reverse the first y-1

Where tapes hold their step's output (restartable), the rest after a held tape is a B problem, else an A problem.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["Move", "MovePolicy", "Sizes", "Subproblem"]


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
class Sizes:
    """Bytes of a state and a tape; whether tapes hold outputs; what the budget may exceed before the turn."""

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
        """The part that is reversed first (to the right), and the part that is left for later, if any."""
        kept, turned, steps, budget = sub
        after_tape = self.restartable
        charge = 0 if kept else self.state
        if move.kind == "hold":
            return Subproblem(after_tape, turned, steps - 1, budget - self.tape), None
        if move.kind == "keep":
            return Subproblem(True, turned, steps, budget - self.state), None
        if move.kind == "split":
            return Subproblem(False, turned, steps - move.y, budget - charge), Subproblem(kept, True, move.y, budget)
        right = Subproblem(after_tape, turned, steps - move.y, budget - charge - self.tape)
        return right, Subproblem(kept, True, move.y - 1, budget) if move.y > 1 else None


class MovePolicy(Protocol):
    """Whoever decides the moves: the exact table, or the bound-guided search."""

    sizes: Sizes

    def choose(self, sub: Subproblem) -> Move:
        """The move for a subproblem in which not all tapes fit."""
