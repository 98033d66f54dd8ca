"""The parts of a persistent schedule of a chain, and the moves that divide a part into smaller ones.

A part reverses the stages start..stop-1 within `budget`. It starts with its first state and (except before the turn)
the cotangent of its last state. If the part *owns* its first state, the budget includes that state's bytes, and they
become free once the first stage is recorded with an option that does not hold its input. Otherwise the state is held,
and counted, outside the part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from remat.problem import Chain

__all__ = ["ChainCosts", "ChainTable", "Move", "OptionCosts", "Part", "TableInBudget"]


class Part(NamedTuple):
    """Stages to reverse, with a budget in the unit of its table."""

    start: int
    stop: int
    budget: int
    owned: bool


class Move(NamedTuple):
    """Record the first stage with an option, then reverse `right`; or advance, reverse `right`, then reverse `left`.

    `left` is None for a record, and `right` too if the recorded stage is the last one.
    """

    option: int | None
    right: Part | None
    left: Part | None


class ChainTable(Protocol):
    """Knows the best move of every part."""

    def whole(self) -> Part:
        """The whole chain as a part."""

    def choose(self, part: Part) -> Move:
        """The move of least seconds."""


class PlannedParts(Protocol):
    """A table for all budgets: it knows the chain's costs and the best move of every part."""

    costs: "ChainCosts"

    def choose(self, part: Part) -> Move:
        """The move of least seconds."""


@dataclass(frozen=True)
class TableInBudget:
    """A table with a budget for the whole chain, in the table's unit; if `owned`, it includes the chain's input."""

    table: PlannedParts
    budget: int
    owned: bool

    def whole(self) -> Part:
        """The whole chain as a part."""
        return Part(0, self.table.costs.units, self.budget, self.owned)

    def choose(self, part: Part) -> Move:
        """The move of least seconds."""
        return self.table.choose(part)


class OptionCosts(NamedTuple):
    """One option of a stage: bytes of its tape, peaks, seconds over the stage's fastest option, and what it holds."""

    tape: int
    record_peak: int
    pullback_peak: int
    extra: float
    holds_input: bool
    holds_output: bool


@dataclass(frozen=True)
class ChainCosts:
    """The numbers of a chain in the form that the recurrences use.

    Every stage is recorded and pulled back once, so every schedule takes at least `least`, the sum over the fastest
    options; tables hold the seconds beyond that.
    """

    states: Sequence[int]  # bytes of states 0..n
    running: Sequence[int]  # peaks of stages without a tape, besides their input
    forward: Sequence[float]  # cumulative forward seconds: stages i..j-1 take forward[j] - forward[i]
    options: Sequence[tuple[OptionCosts, ...]]
    least: float
    furthest: Sequence[int]  # for each state, the last state that can be reached by advancing

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
        """Whether every tape holds its stage's input, as the graphs of frameworks do."""
        return all(option.holds_input for options in self.options for option in options)

    def waiting(self, stop: int) -> int:
        """Bytes of the cotangent that waits while stages before `stop` run: 0 before the turn."""
        return self.states[stop] if stop < self.units else 0


def _furthest(chain: Chain) -> list[int]:
    """For each stage, the first stage from there on that must not run twice, or the number of stages."""
    found = [chain.units]
    for i in reversed(range(chain.units)):
        found.append(found[-1] if chain.stages[i].repeatable else i)
    return found[:0:-1]
