"""One call of a loop, the same for all frameworks: its first sweep, and what waits for the reverse one.

In: a step, the structures of its values, what is asked. Out: a run that has come to its turn, with its verbs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from remat.execute import Interpreter
from remat.execute.backend_protocol import ObservableBackend
from remat.execute.determinism import DeterminismCheck
from remat.execute.rng_state import ReplayableState, StateReplay, preserved_state
from remat.loops.request import LoopRequest
from remat.measuring import StepCost
from remat.planners import Plan
from remat.problem import Memory
from remat.pytree import TreeDef

__all__ = ["LoopBackend", "LoopCall"]


class LoopBackend(ObservableBackend, Protocol):
    """A backend that runs the step of a loop."""

    @property
    def replayable_states(self) -> Sequence[ReplayableState]:
        """What steps change besides their carry, apart from the global random generators."""
        ...


V = TypeVar("V", bound=LoopBackend)


@dataclass
class LoopCall(ABC, Generic[V]):
    """One call: all of it but the values of its leaves, which are those of carry, inputs and captured.

    With `cond` the loop goes on as long as that holds, `max_steps` steps at the most; else it has `steps`.
    """

    step: Any
    carry: TreeDef
    xs: TreeDef
    sizes: tuple[int, int, int]  # leaves of the carry, of the inputs, captured
    request: LoopRequest
    rows: dict[int, int] | None = None
    steps: int | None = None
    cond: Callable[[Any], Any] | None = None
    max_steps: int | None = None
    cond_holds: bool = False  # whether the condition is known to hold at first
    plan: Plan | None = None
    needs_grad: list[bool] = field(default_factory=list)
    pending: tuple[V, Interpreter[V]] | None = None
    replay: StateReplay | None = None  # of the first run, if one was begun before
    initial_rng: Any = None  # the state of the random generators before the first step, if steps draw

    @abstractmethod
    def new_backend(self, leaves: Sequence[Any], steps: int) -> tuple[V, Any]:
        """Verbs for so many steps on plain leaves, and the first carry."""

    @abstractmethod
    def evaluate_cond(self, backend: V, carry: Any) -> bool:
        """Whether the condition holds for a carry."""

    @abstractmethod
    def measured(self, leaves: Sequence[Any]) -> StepCost:
        """What a step costs."""

    def split(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The leaves of the carry, of the inputs, and the captured ones."""
        a, b = self.sizes[0], self.sizes[0] + self.sizes[1]
        return list(leaves[:a]), list(leaves[a:b]), list(leaves[b:])

    def first_sweep(self, leaves: Sequence[Any]) -> tuple[V, Interpreter[V]]:
        """Run forward up to the turn; the run waits for its cotangent."""
        determinism = None if self.request.check == "never" else self.new_determinism_check()
        backend, run = self.pending = self.forward_sweep(leaves, determinism)
        self.initial_rng = run.replay.initial if run.replay.used else None
        return backend, run

    @contextmanager
    def at_turn(self, leaves: Sequence[Any]) -> Iterator[tuple[V, Interpreter[V]]]:
        """A run at its turn: the one that waits, or for a second reverse sweep one that runs forward again first."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            yield pending
            return
        determinism = self.new_determinism_check() if self.request.check == "always" else None
        if self.initial_rng is None:
            yield self.forward_sweep(leaves, determinism)
            return
        with preserved_state(self.new_backend(leaves, 0)[0].replayable_states, self.initial_rng):
            yield self.forward_sweep(leaves, determinism)

    def new_determinism_check(self) -> DeterminismCheck:
        """Whoever compares what is computed again with what was computed first."""
        return DeterminismCheck(self.steps)

    def new_run(self, leaves: Sequence[Any], determinism: DeterminismCheck | None) -> tuple[V, Interpreter[V]]:
        """A backend, and a run from the initial state, which the profile records."""
        backend, state = self.new_backend(leaves, self.steps or 0)
        request, replay, self.replay = self.request, self.replay, None
        memory = request.memory if request.plan is None else request.plan.memory
        restartable = self.plan is not None and self.plan.problem.restartable
        recorder = None
        if request.call is not None:
            recorder = request.call.recorder(backend, state, memory, restartable=restartable)
        return backend, Interpreter(
            backend,
            state,
            self.steps,
            restartable=restartable,
            determinism=determinism,
            replay=StateReplay(backend.replayable_states) if replay is None else replay,
            progress=request.progress,
            total=None if self.plan is None or self.steps is None else self.plan.forward_steps + self.steps,
            observer=recorder,
        )

    def forward_sweep(self, leaves: Sequence[Any], determinism: DeterminismCheck | None) -> tuple[V, Interpreter[V]]:
        """Run the first sweep, up to the turn."""
        if self.plan is None and self.cond is not None:
            return self._run_online(leaves, determinism)
        if self.plan is None:
            self.plan = self.request.plan_for(self.steps, lambda: self.measured(leaves))
        self.request.record(self.steps, self.plan)
        backend, run = self.new_run(leaves, determinism)
        run.play(self.plan.schedule)
        return backend, run

    def _run_online(self, leaves: Sequence[Any], determinism: DeterminismCheck | None) -> tuple[V, Interpreter[V]]:
        """Go on to the end of the loop, keeping states as if any step could be the last; then its schedule is known."""
        backend, run = self.new_run(leaves, determinism)
        goes_on = self.cond_holds or self.evaluate_cond(backend, run.state)
        # A step that never runs is not measured.
        request = self.request if goes_on else replace(self.request, memory=Memory(slots=1))
        driver = request.plan_for(None, lambda: self.measured(leaves)).start()
        while goes_on and driver.at + 1 != self.max_steps:
            run.play(driver.advance())
            goes_on = self.evaluate_cond(backend, run.state)
        run.play(driver.last() if goes_on else driver.ended())
        self.plan = driver.plan()
        self.steps = self.plan.problem.units
        self.request.record(self.steps, self.plan)
        return backend, run
