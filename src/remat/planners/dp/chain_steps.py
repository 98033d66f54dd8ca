"""Chains, exactly: the two-table recurrence over parts, as step functions of the budget in bytes.

U is for parts whose first state is held outside, V for parts that own it (`chain_parts`). Let x be the bytes of states,
c_t the bytes of the cotangent that waits at t (0 before the turn), f and F the seconds and the peak of a stage without
a tape, and for an option o of stage s, a the bytes of its tape, R and P its peaks, and e its seconds over the fastest
option:

    next_o(m)  = 0 if s+1 = t, else U(s+1, t, m - x_{s+1}) if o holds the output, else V(s+1, t, m)
    U(s, t, m) = min( min_o  e_o + next_o(m - a_o)                                if m ≥ R_o + c_t, P_o
                      min_j  f_s + … + f_{j-1} + V(j, t, m) + U(s, j, m)          if m ≥ c_t + F_s, c_t + x_k + F_k )
    V(s, t, m) = min( U(s, t, m - x_s),
                      min_o  e_o + next_o(m - a_o)       o not holding its input, if m ≥ x_s + R_o + c_t, P_o
                      min_j  f_s + … + f_{j-1} + V(j, t, m - x_s) + V(s, j, m)    if some option of s does not )

k runs over the stages s < k < j that are advanced over. Each value is reached by a schedule, and no *persistent*
schedule (what is held stays until its own part is reversed) is better, by the argument of `exact_table`. If every tape
holds its stage's input, V(s, t, m) = U(s, t, m - x_s), and one table is enough.

Parts with equal stages are solved once. A split at j costs at least f_s + … + f_{j-1}, so budgets at which recording is
already as good are skipped. The cost grows with the number of distinct sums of sizes; `most` bounds the points.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from remat.planners.dp.chain_parts import ChainCosts, Move, Part, TableInBudget
from remat.planners.dp.step_functions import StepFunction, added, lowest, moved
from remat.progress import report_progress

__all__ = ["ChainSteps", "TooManyPoints"]

_HELD_OUTSIDE = (
    0  # the move of V that holds the first state and continues as U; d > 0 is a split at s + d, -1 - k is option k
)
MOST_KINDS = 3000  # distinct stages times stages; beyond this there are too many parts, however few their points
_ANY = 2**62  # a budget that is never reached


class TooManyPoints(Exception):
    """The step functions have more points than allowed."""


class ChainSteps:
    """The step functions of all parts of a chain, and the moves that reach their values."""

    def __init__(self, costs: ChainCosts, most: float) -> None:
        self.costs = costs
        self._left = most
        self._held: dict[tuple[int, int], StepFunction] = {}  # U
        self._owned: dict[tuple[int, int], StepFunction] = {}  # V, unless every tape holds its input
        self._solve()

    @cached_property
    def least(self) -> int:
        """The least bytes in which the chain can be reversed."""
        return int(self._whole.budgets[0])

    @property
    def _whole(self) -> StepFunction:
        return self._own(0, self.costs.units)

    def seconds(self, budget: int) -> float:
        """The least seconds in `budget` bytes, which must be at least `least`."""
        return self.costs.least + float(self._whole.extras[self._whole.place(budget)])

    def in_budget(self, budget: int) -> TableInBudget:
        """This table for a budget of `budget` bytes."""
        return TableInBudget(self, budget, owned=True)

    def choose(self, part: Part) -> Move:
        """The move of least seconds."""
        start, stop, budget, owned = part
        function = self._own(start, stop) if owned else self._held[start, stop]
        move = int(function.moves[function.place(budget)])
        if owned and (self.costs.pinned or move == _HELD_OUTSIDE):
            return self.choose(Part(start, stop, budget - self.costs.states[start], False))
        if move > 0:
            inside = budget - self.costs.states[start] if owned else budget
            return Move(None, Part(start + move, stop, inside, True), Part(start, start + move, budget, owned))
        option = self.costs.options[start][-1 - move]
        rest = budget - option.tape
        if start + 1 == stop:
            return Move(-1 - move, None, None)
        if option.holds_output:
            return Move(-1 - move, Part(start + 1, stop, rest - self.costs.states[start + 1], False), None)
        return Move(-1 - move, Part(start + 1, stop, rest, True), None)

    def _own(self, start: int, stop: int) -> StepFunction:
        """V(start, stop)."""
        if not self.costs.pinned:
            return self._owned[start, stop]
        held = self._held[start, stop]
        return held._replace(budgets=held.budgets + self.costs.states[start])

    def _solve(self) -> None:
        costs, n = self.costs, self.costs.units
        names: dict[object, int] = {}
        kind = [
            names.setdefault(
                (*costs.states[i : i + 2], costs.running[i], costs.options[i], f, costs.furthest[i] == i), len(names)
            )
            for i, f in enumerate(_differences(costs.forward))
        ]
        if len(names) * n > MOST_KINDS:
            raise TooManyPoints
        solved: dict[object, tuple[StepFunction, StepFunction]] = {}
        for length in range(1, n + 1):
            report_progress(length, n)
            for start in range(n - length + 1):
                part = start, start + length
                key = (*kind[start : part[1]], costs.waiting(part[1]))
                if key not in solved:
                    self._held[part] = self._solve_held(*part)
                    self._owned[part] = self._held[part] if costs.pinned else self._solve_owned(*part)
                    solved[key] = self._held[part], self._owned[part]
                self._held[part], self._owned[part] = solved[key]

    def _solve_held(self, s: int, t: int) -> StepFunction:
        costs, waiting = self.costs, self.costs.waiting(t)
        candidates = [
            self._recorded(s, t, k, max(option.record_peak + waiting, option.pullback_peak))
            for k, option in enumerate(costs.options[s])
        ]
        recorded = lowest([candidate for candidate in candidates if candidate is not None])
        running = costs.running[s]
        for j in range(s + 1, min(t, costs.furthest[s] + 1)):
            advance = costs.forward[j] - costs.forward[s]
            left, right = self._held[s, j], self._owned[j, t]
            shift = costs.states[j] if costs.pinned else 0
            candidates.append(added(right, shift, left, running + waiting, _above(recorded, advance), advance, j - s))
            running = max(running, costs.states[j] + costs.running[j])
        return self._counted(candidates)

    def _solve_owned(self, s: int, t: int) -> StepFunction:
        costs, own = self.costs, self.costs.states[s]
        candidates = [moved(self._held[s, t], own, 0, 0.0, _HELD_OUTSIDE)]
        if all(option.holds_input for option in costs.options[s]):
            return self._counted(candidates)
        waiting = costs.waiting(t)
        for k, option in enumerate(costs.options[s]):
            if not option.holds_input:
                least = max(own + option.record_peak + waiting, option.pullback_peak)
                candidates.append(self._recorded(s, t, k, least))
        running = own + costs.running[s]
        for j in range(s + 1, min(t, costs.furthest[s] + 1)):
            advance = costs.forward[j] - costs.forward[s]
            left, right = self._owned[s, j], self._owned[j, t]
            candidates.append(added(right, own, left, running + waiting, _ANY, advance, j - s))
            running = max(running, own + costs.states[j] + costs.running[j])
        return self._counted(candidates)

    def _recorded(self, s: int, t: int, k: int, least: int) -> StepFunction | None:
        """Record stage s with option k, in a budget of at least `least`, then reverse the rest of the part."""
        option = self.costs.options[s][k]
        if s + 1 == t:
            return _point(least, option.extra, -1 - k)
        if option.holds_output:
            rest, more = self._held[s + 1, t], option.tape + self.costs.states[s + 1]
        else:
            rest, more = self._own(s + 1, t), option.tape
        return moved(rest, more, least, option.extra, -1 - k)

    def _counted(self, candidates: "list[StepFunction | None]") -> StepFunction:
        there = [candidate for candidate in candidates if candidate is not None]
        self._left -= sum(len(candidate.budgets) for candidate in there)
        if self._left < 0:
            raise TooManyPoints
        return lowest(there)


def _point(budget: int, extra: float, move: int) -> StepFunction:
    import numpy as np

    return StepFunction(np.array([budget]), np.array([extra]), np.array([move], np.int32))


def _above(function: StepFunction, extra: float) -> int:
    """The first budget at which `function` is at most `extra`, so that a candidate of at least `extra` is useless."""
    place = int((-function.extras).searchsorted(-extra, "left"))
    return int(function.budgets[place]) if place < len(function.budgets) else _ANY


def _differences(sums: Sequence[float]) -> list[float]:
    # Rounded, so that equal stages compare equal although their sums of seconds differ in the last bit.
    return [round(b - a, 12) for a, b in pairwise(sums)]
