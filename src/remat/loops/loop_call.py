"""One call of a loop, the same for all frameworks: its first sweep, and what waits for the reverse one.

In: a step, the structures of its values, what is asked. Out: a run that has come to its turn, with its verbs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from remat.execute import Run, Verbs
from remat.execute.determinism import Guard
from remat.execute.rng_state import set_back
from remat.loops.request import Asked
from remat.measuring import Measured
from remat.planners import Plan
from remat.problem import Memory
from remat.pytree import Tree

__all__ = ["Call", "measured_before"]

V = TypeVar("V", bound=Verbs)

MOST_MEASURED = 256
# By code and looks: the size of the first tape, what was found, and in how much room.
_measured: dict[Any, tuple[int, Measured, int]] = {}


@dataclass
class Call(ABC, Generic[V]):
    """One call: all of it but the values of its leaves, which are those of carry, inputs and captured.

    With `cond` the loop goes on as long as that holds, `most` steps at the most; else it has `steps`.
    """

    step: Any
    carry: Tree
    xs: Tree
    sizes: tuple[int, int, int]  # leaves of the carry, of the inputs, captured
    asked: Asked
    rows: dict[int, int] | None = None
    steps: int | None = None
    cond: Callable[[Any], Any] | None = None
    most: int | None = None
    began: bool = False  # whether the condition is known to hold at first
    plan: Plan | None = None
    wanted: list[bool] = field(default_factory=list)
    pending: tuple[V, Run] | None = None
    drawn_from: Any = None  # the state of the random generators before the first step, if steps draw

    @abstractmethod
    def start(self, leaves: Sequence[Any], steps: int) -> tuple[V, Any]:
        """Verbs for so many steps on plain leaves, and the first carry."""

    @abstractmethod
    def holds(self, verbs: V, carry: Any) -> bool:
        """Whether the condition holds for a carry."""

    @abstractmethod
    def measured(self, leaves: Sequence[Any]) -> Measured:
        """What a step costs."""

    def parts(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The leaves of the carry, of the inputs, and the captured ones."""
        a, b = self.sizes[0], self.sizes[0] + self.sizes[1]
        return list(leaves[:a]), list(leaves[a:b]), list(leaves[b:])

    def first_sweep(self, leaves: Sequence[Any]) -> tuple[V, Run]:
        """Run forward up to the turn; the run waits for its cotangent."""
        guard = None if self.asked.check == "never" else self.new_guard()
        verbs, run = self.pending = self.sweep(leaves, guard)
        self.drawn_from = run.replay.first if run.replay.drew else None
        return verbs, run

    @contextmanager
    def turned(self, leaves: Sequence[Any]) -> Iterator[tuple[V, Run]]:
        """A run at its turn: the one that waits, or for a second reverse sweep one that runs forward again first."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            yield pending
            return
        guard = self.new_guard() if self.asked.check == "always" else None
        if self.drawn_from is None:
            yield self.sweep(leaves, guard)
            return
        with set_back(self.start(leaves, 0)[0].sources, self.drawn_from):
            yield self.sweep(leaves, guard)

    def new_guard(self) -> Guard:
        """Whoever compares what is computed again with what was computed first."""
        return Guard(self.steps)

    def new_run(self, leaves: Sequence[Any], guard: Guard | None) -> tuple[V, Run]:
        """Verbs, and a run at the initial state."""
        verbs, state = self.start(leaves, self.steps or 0)
        total = None if self.plan is None or self.steps is None else self.plan.forward_steps + self.steps
        return verbs, self.asked.new_run(verbs, state, self.steps, guard, total)

    def sweep(self, leaves: Sequence[Any], guard: Guard | None) -> tuple[V, Run]:
        """Run the first sweep, up to the turn."""
        if self.plan is None and self.cond is not None:
            return self._drive(leaves, guard)
        if self.plan is None:
            self.plan = self.asked.plan_for(self.steps, lambda: self.measured(leaves))
        self.asked.note(self.steps, self.plan)
        verbs, run = self.new_run(leaves, guard)
        run.play(self.plan.schedule)
        return verbs, run

    def _drive(self, leaves: Sequence[Any], guard: Guard | None) -> tuple[V, Run]:
        """Go on to the end of the loop, keeping states as if any step could be the last; then its schedule is known."""
        verbs, run = self.new_run(leaves, guard)
        goes_on = self.began or self.holds(verbs, run.state)
        # A step that never runs is not measured.
        asked = self.asked if goes_on else replace(self.asked, memory=Memory(slots=1))
        driver = asked.plan_for(None, lambda: self.measured(leaves)).start()
        while goes_on and driver.at + 1 != self.most:
            run.play(driver.advance())
            goes_on = self.holds(verbs, run.state)
        run.play(driver.last() if goes_on else driver.ended())
        self.plan = driver.plan()
        self.steps = self.plan.problem.units
        self.asked.note(self.steps, self.plan)
        return verbs, run


def measured_before(key: Any, first: int, room: int, measure: Callable[[], Measured]) -> Measured:
    """What a step costs: as an earlier loop with this key found it whose first tape was as large, or measured anew."""
    known = _measured.get(key)
    if known is not None and room > known[2] and known[1].improves_in(room):
        known = None
    if known is None or not 0.98 * known[0] <= first <= 1.02 * known[0]:
        while len(_measured) >= MOST_MEASURED:
            _measured.pop(next(iter(_measured)))
        known = _measured[key] = first, measure(), room
    return known[1]
