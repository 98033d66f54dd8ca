"""One call of a loop, the same for all frameworks: its first sweep, and the run that then waits for its cotangent.

In: a step, the structures of its values, the request. Out: a run at its turn, and the backend that it runs on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from remat.errors import DeterminismError, StepError
from remat.execute import Interpreter
from remat.execute.backend_protocol import ObservableBackend
from remat.execute.determinism import DeterminismCheck
from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import StateReplay, preserved_state
from remat.execute.stop import Stopped, until_stopped
from remat.loops.leaf_spec import LeafOps
from remat.loops.plan_log import LoggedPlan, next_plan
from remat.loops.request import LoopRequest
from remat.loops.stacked_values import Inputs, Outputs
from remat.loops.step_runner import StepRunner
from remat.measuring import StepCost
from remat.ops import Op
from remat.planners import Plan
from remat.planners.plan import ScheduleDriver
from remat.problem import Memory
from remat.profiling.tape_contents import TapeListing
from remat.pytree import TreeDef

__all__ = ["LoopBackend", "LoopCall"]


class LoopBackend(ObservableBackend, Protocol):
    """A backend that runs the step of a loop."""

    @property
    def replayable_states(self) -> Sequence[ReplayableState]:
        """States that steps change besides their carry; the global random generators are always included."""
        ...

    def tape_listing(self) -> TapeListing | None:
        """An object that lists the tape of one step for a profile; None if the framework cannot look inside."""
        ...


V = TypeVar("V", bound=LoopBackend)


@dataclass
class LoopCall(ABC, Generic[V]):
    """One call of a loop, without its leaves: they are passed to its methods, since AD tools trace them.

    `leaves` are always those of the carry, then of the inputs, then the captured values. With `cond` the loop runs as
    long as that holds, for at most `max_steps` steps; otherwise it has `steps` steps.
    """

    step: Any
    carry: TreeDef
    xs: TreeDef
    sizes: tuple[int, int, int]  # numbers of leaves: carry, inputs, captured
    request: LoopRequest
    rows: dict[int, int] | None = None  # by step: the row of its output; None if all outputs are kept
    steps: int | None = None
    cond: Callable[[Any], Any] | None = None
    max_steps: int | None = None
    cond_holds: bool = False  # whether the condition is already known to hold for the first carry
    plan: Plan | None = None
    needs_grad: list[bool] = field(default_factory=list)  # per leaf
    pending: tuple[V, Interpreter[V]] | None = None  # the run that waits at its turn for the reverse sweep
    replay: StateReplay | None = None  # for the first run, if a probe of the step has already created it
    # Has the fingerprint of the last state if the first run recomputes nothing: a later run is compared with it.
    last_check: DeterminismCheck | None = None
    initial_rng: Any = None  # the rng state before the first step, if steps use it
    initial_states: Sequence[Any] = ()  # before the first step: of all states that steps change or may read

    @abstractmethod
    def new_backend(self, leaves: Sequence[Any], steps: int) -> tuple[V, Any]:
        """A backend for a loop of `steps` steps on plain leaves, and the initial carry."""

    def start(self, leaves: Sequence[Any]) -> tuple[V, Any]:
        """The backend of a run of the whole loop, and the initial carry."""
        return self.new_backend(leaves, self.steps or 0)

    @abstractmethod
    def evaluate_cond(self, backend: V, carry: Any) -> bool:
        """Whether the condition holds for a carry."""

    @abstractmethod
    def measured(self, leaves: Sequence[Any]) -> StepCost:
        """The measured cost of a step."""

    def new_runner(
        self,
        leaf_ops: LeafOps,
        init: Sequence[Any],
        xs: Sequence[Any],
        steps: int,
        protect: Callable[[Any], Any] | None = None,
    ) -> StepRunner:
        """A runner for that many steps, starting from these leaves of the carry."""
        specs = [leaf_ops.spec_of(leaf, name) for leaf, name in zip(init, self.carry.paths("carry"), strict=True)]
        outputs = Outputs(leaf_ops, steps, self.rows, spare=self.request.spare_row)
        names = self.request.carry_names
        return StepRunner(leaf_ops, self.carry, specs, Inputs(xs, self.xs), outputs, protect, names)

    def split(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The leaves of the carry, of the inputs, and the captured ones."""
        xs_start, captured_start = self.sizes[0], self.sizes[0] + self.sizes[1]
        return list(leaves[:xs_start]), list(leaves[xs_start:captured_start]), list(leaves[captured_start:])

    def first_sweep(self, leaves: Sequence[Any]) -> tuple[V, Interpreter[V]]:
        """Run forward up to the turn, and keep the run until its cotangent is known."""
        determinism = None if self.request.check == "never" else self.new_determinism_check()
        backend, run = self.pending = self.forward_sweep(leaves, determinism)
        if determinism is not None and self.steps and self.plan is not None and self.plan.forward_steps <= self.steps:
            fingerprinted: Any = backend  # with a determinism check, it is a FingerprintedBackend
            self.last_check = self.new_determinism_check()
            self.last_check.record_kept(self.steps, fingerprinted, run.state)
        self.initial_rng = run.replay.initial if run.replay.used else None
        self.initial_states = run.replay.initial_of_read()
        return backend, run

    @contextmanager
    def at_turn(self, leaves: Sequence[Any]) -> Iterator[tuple[V, Interpreter[V]]]:
        """A run at its turn: the pending one, or a new one for a second reverse sweep, which runs forward first."""
        if self.pending is not None:
            # A reverse sweep consumes its run and may be interrupted, so the run is released before it begins.
            pending, self.pending = self.pending, None
            with self.errors_located():
                yield pending
            return
        determinism = self.new_determinism_check() if self.request.check == "always" else None
        # Draw the same numbers and read the same states as the first time, and restore all states afterwards. The
        # reverse sweep restores its own, since user code that runs in its pullbacks may change states for good.
        with self.errors_located():
            with preserved_state(self.new_backend(leaves, 0)[0].replayable_states, self.initial_states):
                run = self.forward_sweep(leaves, determinism)
            self.compare_last(run[0], run[1].state)
            yield run

    @contextmanager
    def errors_located(self) -> Iterator[None]:
        """A context of the backward whose errors say which loop they are of."""
        try:
            yield
        except (StepError, DeterminismError) as error:
            self.request.locate(error)
            raise

    def compare_last(self, backend: Any, state: Any) -> None:
        """Raise a DeterminismError if a later run, the first that recomputes steps, ends in a different state."""
        check, self.last_check = self.last_check, None
        if check is not None:
            check.compare(self.steps or 0, backend, state, recorded=0)
            check.finish(backend)

    def new_determinism_check(self) -> DeterminismCheck:
        """The determinism check for one run."""
        return DeterminismCheck(self.steps, kept_only=self.request.runs_sections)

    def new_run(self, leaves: Sequence[Any], determinism: DeterminismCheck | None) -> tuple[V, Interpreter[V]]:
        """A backend, and a run that starts at the initial state, observed by a profile if one is open."""
        backend, state = self.start(leaves)
        request, replay, self.replay = self.request, self.replay, None
        memory = request.memory if request.plan is None else request.plan.memory
        restartable = self.plan is not None and self.plan.problem.restartable
        recorder = None
        if request.call is not None:
            listing = backend.tape_listing()
            recorder = request.call.recorder(backend, state, memory, restartable=restartable, listing=listing)
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
        """Plan the loop if there is no plan yet, and run the first sweep, up to the turn."""
        if self.plan is None:
            logged = next_plan()
            self.plan = logged.get()
            if self.plan is not None:
                self.steps = self.plan.problem.units
            elif self.cond is not None:
                return self._run_online(leaves, determinism, logged)
            else:
                self.plan = self.request.plan_for(self.steps, lambda: self.measured(leaves))
                logged.put(self.plan)
        self.request.record(self.steps, self.plan)
        backend, run = self.new_run(leaves, determinism)
        run.play(self.plan.schedule)
        return backend, run

    def _run_online(
        self, leaves: Sequence[Any], determinism: DeterminismCheck | None, logged: LoggedPlan
    ) -> tuple[V, Interpreter[V]]:
        """Run a loop of unknown length to its end, while an online planner decides which states to keep.

        See Stumm & Walther 2010, "New algorithms for optimal online checkpointing".
        """
        backend, run = self.new_run(leaves, determinism)
        goes_on = self.cond_holds or self.evaluate_cond(backend, run.state)
        # A loop of no steps needs no memory: any plan will do, so no step is measured.
        request = self.request if goes_on else replace(self.request, memory=Memory(slots=1))
        driver = request.plan_for(None, lambda: self.measured(leaves)).start()
        if self.cond is until_stopped:
            run.play(self._run_until_stopped(run, driver))
        else:
            while goes_on and driver.at + 1 != self.max_steps:
                run.play(driver.advance())
                goes_on = self.evaluate_cond(backend, run.state)
            run.play(driver.last() if goes_on else driver.ended())
        self.plan = driver.plan()
        logged.put(self.plan)
        self.steps = self.plan.problem.units
        self.request.record(self.steps, self.plan)
        return backend, run

    def _run_until_stopped(self, run: Interpreter[V], driver: ScheduleDriver) -> Iterable[Op]:
        """Run steps until one returns STOP, or `max_steps` of them; return the rest of the schedule."""
        while driver.at != self.max_steps:
            if not run.try_to_play(driver.advance()):
                if driver.at == 1 or self.request.counts_only:
                    raise Stopped(driver.at - 1)
                return driver.withdrawn()
        if self.request.counts_only:
            raise Stopped(driver.at)
        return driver.ended()
