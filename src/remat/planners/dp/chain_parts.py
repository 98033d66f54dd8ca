"""The parts that a persistent schedule of a chain is made of, and the moves that make a part of smaller ones.

A part is the stages start..stop-1, reversed from start: its first state is there, the cotangent of its last one is (but
before the turn), and `budget` is what it may use. If the part *owns* its first state, its bytes are in the budget, and
they are free once the first stage is recorded by an option that does not hold its input; otherwise somebody outside
holds the state and has paid for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from remat.problem import Chain

__all__ = ["ChainCosts", "ChainTable", "Move", "OptionCosts", "Part", "TableInBudget"]


class Part(NamedTuple):
    """Stages to reverse, with a budget in the unit of the table that made the part."""

    start: int
    stop: int
    budget: int
    owned: bool


class Move(NamedTuple):
    """Record the first stage by an option and reverse the `right` part, or advance to the right part and come back.

    `right` is None where the stage was the last one; `left` is None for a record.
    """

    option: int | None
    right: Part | None
    left: Part | None


class ChainTable(Protocol):
    """Knows the best move of every part."""

    def whole(self) -> Part:
        """The part that is all of the chain."""

    def choose(self, part: Part) -> Move:
        """The move of least seconds."""


class PlannedParts(Protocol):
    """A table of all budgets: it knows the chain's costs, and the best move of every part."""

    costs: "ChainCosts"

    def choose(self, part: Part) -> Move:
        """The move of least seconds."""


@dataclass(frozen=True)
class TableInBudget:
    """A table with the budget of the whole chain, in the table's unit, in which the chain's input is if it is owned."""

    table: PlannedParts
    budget: int
    owned: bool

    def whole(self) -> Part:
        """The part that is all of the chain."""
        return Part(0, self.table.costs.units, self.budget, self.owned)

    def choose(self, part: Part) -> Move:
        """The move of least seconds."""
        return self.table.choose(part)


class OptionCosts(NamedTuple):
    """One option of a stage: own bytes of its tape, peaks, seconds beyond the stage's fastest option, what it holds."""

    tape: int
    record_peak: int
    pullback_peak: int
    extra: float
    holds_input: bool
    holds_output: bool


@dataclass(frozen=True)
class ChainCosts:
    """The numbers of a chain as the recurrences use them.

    Every stage is recorded and pulled back once, so the sum of the fastest options, `least`, is paid by every schedule;
    tables are about the seconds beyond it.
    """

    states: Sequence[int]  # bytes of states 0..n
    running: Sequence[int]  # peaks of stages without tape, above their input
    forward: Sequence[float]  # sums of forward seconds: stages i..j-1 take forward[j] - forward[i]
    options: Sequence[tuple[OptionCosts, ...]]
    least: float
    furthest: Sequence[int]  # the last state to which one can advance from each

    @classmethod
    def of(cls, chain: Chain) -> "ChainCosts":
        """The costs of a chain."""
        states = [chain.state_size(i) for i in range(chain.units + 1)]
        fastest = [min(option.record + option.backward for option in stage.options) for stage in chain.stages]
        options = [
            tuple(
                OptionCosts(
                    option.tape,
                    stage.record_peak(k),
                    stage.pullback_peak(k, states[i]),
                    option.record + option.backward - fastest[i],
                    option.holds_input,
                    option.holds_output,
                )
                for k, option in enumerate(stage.options)
            )
            for i, stage in enumerate(chain.stages)
        ]
        forward = [chain.advance_time(0, i) for i in range(chain.units + 1)]
        running = [stage.running_peak for stage in chain.stages]
        return cls(states, running, forward, options, sum(fastest), _furthest(chain))

    @property
    def units(self) -> int:
        """The number of stages."""
        return len(self.running)

    @cached_property
    def pinned(self) -> bool:
        """Whether every tape holds its stage's input, as graphs of frameworks do."""
        return all(option.holds_input for options in self.options for option in options)

    def waiting(self, stop: int) -> int:
        """Bytes of the cotangent that waits while stages before `stop` run: none before the turn."""
        return self.states[stop] if stop < self.units else 0


def _furthest(chain: Chain) -> list[int]:
    """For each stage, the first one from there on that cannot be repeated, or the number of stages."""
    found = [chain.units]
    for i in reversed(range(chain.units)):
        found.append(found[-1] if chain.stages[i].repeatable else i)
    return found[:0:-1]
