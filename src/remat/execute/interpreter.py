"""The interpreter: one plain loop over ops, the same for every framework.

In: ops (whole schedules, or a few at a time for a loop of unknown length) and a backend. Out: state n at the turn, the
gradients at the end. The `Machine` decides whether an op is legal and what it does to the set of live values, as it
does for `verify` and `simulate`; the interpreter moves the values themselves. What a schedule drops is freed at once:
neither the interpreter nor a caller's frame refers to a state or a tape longer than the schedule says.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, Protocol, TypeVar

from remat.errors import IllegalError
from remat.execute.backend_protocol import Backend
from remat.execute.determinism import DeterminismCheck
from remat.execute.state_replay import StateReplay
from remat.execute.state_store import RamStore, StateStore
from remat.execute.stop import Stopped
from remat.ops import TAPE, Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn
from remat.problem import Memory, Sizes
from remat.progress import Progress
from remat.schedule.machine import Machine
from remat.schedule.notation import format_op
from remat.schedule.rules import BEFORE, unfinished

__all__ = ["Interpreter", "LiveSizes", "Observer"]

B = TypeVar("B", bound=Backend)

LONG = 4  # recorded steps after which rounding may have grown so much that comparing fingerprints shows nothing
UNKNOWN_LENGTH = 2**62  # units of a loop that has not ended yet: every index is legal


class Observer(Protocol):
    """Called around every op, and asked for the sizes of values; see `profiling.trace_recorder`."""

    @property
    def sizes(self) -> Sizes:
        """The sizes of states and tapes, from which the machine computes live bytes."""
        ...

    @property
    def memory(self) -> Memory | None:
        """The levels of memory and their capacities."""
        ...

    def begin(self, op: Op) -> None:
        """Called before an op runs."""
        ...

    def measure(self, op: Op, run: "Interpreter[Any]") -> None:
        """Called when an op has run, before the machine applies it, to measure its results."""
        ...

    def end(self, op: Op, run: "Interpreter[Any]") -> None:
        """Called when the machine has applied an op."""
        ...

    def stop(self, error: BaseException, run: "Interpreter[Any]") -> None:
        """Called when an error or Ctrl-C ends the run."""
        ...


class Interpreter(Generic[B]):
    """One run of a schedule: `play` its ops up to the turn, take `state`, then `reverse` the gradients.

    `stores` maps the names of levels to the stores of their states; a level without one keeps them in RAM. With
    `restartable`, every tape also keeps the state at the end of its range, for `Fetch(i, "tape")`.
    """

    def __init__(
        self,
        backend: B,
        state: Any,
        units: int | None,
        *,
        stores: Mapping[str, StateStore] | None = None,
        restartable: bool = False,
        determinism: DeterminismCheck | None = None,
        replay: StateReplay | None = None,
        progress: Progress | None = None,
        total: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.backend, self.units, self.observer = backend, units, observer
        self._fingerprinted: Any = backend  # with `determinism`, it is a FingerprintedBackend
        self.determinism, self.progress, self.total = determinism, progress, total
        sizes, memory = (
            (LiveSizes(restartable=restartable), None) if observer is None else (observer.sizes, observer.memory)
        )
        self.machine = Machine(sizes, memory)
        self.machine.memory = None  # levels and capacities are not checked, in profiled runs as in all others
        self.machine.units = UNKNOWN_LENGTH if units is None else units
        self.stores: MutableMapping[str, StateStore] = defaultdict(RamStore, stores or {})
        self.restartable = restartable
        self.tapes: dict[tuple[int, int], Any] = {}
        self.replay = StateReplay() if replay is None else replay
        self.done = 0  # units that were run or pulled back, for progress
        self._tape_ends: dict[int, tuple[Any, Any]] = {}  # by number: a state kept with a tape, and its rng state
        self._rng: dict[tuple[int, str], Any] = {}  # by number and level: the rng state at a kept state
        self._seals: dict[tuple[int, str], Any] = {}  # by number and level: shows whether a kept state was written into
        self._fetched: tuple[int, Any] = (-1, None)  # the number of the last fetched state, and its rng state
        self._rest: Iterator[Op] = iter(())  # the ops after the turn
        self._outside: Any = None  # the replayable states with which the program continues after the reverse sweep
        # Lists of one element or none: `pop` passes a value on without leaving a reference to it here.
        self._working = [state]
        self._gradients: list[Any] = []

    @property
    def state(self) -> Any:
        """The working state."""
        return self._working[0]

    @property
    def has_state(self) -> bool:
        """Whether there is a working state."""
        return bool(self._working)

    @property
    def gradients(self) -> Any:
        """The gradients so far; None before the turn, and while a pullback owns them."""
        return self._gradients[0] if self._gradients else None

    def take(self) -> Any:
        """Take the result at the turn; afterwards the interpreter has no reference to it."""
        return self._working.pop()

    def play(self, ops: Iterable[Op]) -> bool:
        """Run ops up to the turn (True) or to their end (False)."""
        try:
            return self._play(ops)
        except Stopped:  # not an error: the caller withdraws the op
            raise
        except BaseException as error:  # Ctrl-C too
            if self.observer is not None:
                self.observer.stop(error, self)
            raise

    def try_to_play(self, ops: Iterable[Op]) -> bool:
        """Run ops of which the last is an Advance; return False, and undo the Advance, if its step ended the loop.

        The ops before the Advance stay done. The state before the step is held meanwhile, as the step's argument is.
        """
        *before, advance = ops
        self.play(before)
        state, mark = self._working[0], self.replay.snapshot()
        try:
            self.play((advance,))
        except Stopped:
            self.replay.rewind(mark)
            self._working = [state]
            return False
        return True

    def _play(self, ops: Iterable[Op]) -> bool:
        observer, progress, apply = self.observer, self.progress, self.machine.apply
        self._rest = iter(ops)
        for op in self._rest:
            if observer is not None:
                observer.begin(op)
            if type(op) is Turn and self.units is None:
                self.units = self.machine.units = self.machine.working or 0
            self._check_legal(op)
            _RUN[type(op)](self, op)
            if observer is not None:
                observer.measure(op, self)
            apply(op)
            if observer is not None:
                observer.end(op, self)
            if progress is not None:
                progress.update(self.done, self.total)
            if type(op) is Turn:
                return True
        return False

    def reverse(self, gradients: Any) -> Any:
        """Play the ops after the turn with the gradients at state n; return the gradients at state 0."""
        self._working = []  # the result belongs to the caller
        self._gradients = [gradients]
        del gradients
        self.replay.note_later_changes()
        self._outside = self.replay.snapshot() if self.replay.used else None
        try:
            self.play(self._rest)
        finally:
            self.replay.restore(self._outside)
            self.replay.settle(contents=False)
        if self.determinism is not None:
            self.determinism.finish(self._fingerprinted)
        unfinished_fact = unfinished(self.machine)
        if unfinished_fact is not None:
            kept = sum(map(len, self.machine.kept.values()))
            raise IllegalError(
                f"the schedule ended with the cotangent at state {self.machine.cotangent}, {kept} states kept and "
                f"{len(self.tapes)} tapes held ({unfinished_fact}); at its end all is pulled back and nothing is held"
            )
        return self._gradients.pop()

    def _check_legal(self, op: Op) -> None:
        rules = BEFORE.get(type(op))
        if rules is None:
            raise IllegalError(f"{op!r:.60} is not an op of a schedule; remat.ops has those of loops and chains")
        for rule in rules:
            fact = rule.check(self.machine, op)
            if fact is not None:
                raise IllegalError(
                    f"the schedule is not legal at {format_op(op)!r}, rule R{rule.number} ({rule.title}): {fact}. "
                    f"Live: {self.machine.describe()}. Hint: {rule.hint}"
                )

    def _advance(self, op: Advance) -> None:
        start, stop = op.start, op.stop
        if self.machine.cotangent is None and self.determinism is not None:
            # In the first sweep, stop wherever a fingerprint is to be recorded.
            position = start
            while position < stop:
                position, before = self.determinism.next_stop(position, stop), position
                self._working.append(self.backend.advance(self._working.pop(), before, position))
                self.determinism.record(position, self._fingerprinted, self._working[0])
        else:
            self._working.append(self.backend.advance(self._working.pop(), start, stop))
            if self.determinism is not None:
                self._compare_advanced(self._working[0], start, stop)
        self.done += stop - start

    def _record(self, op: Record) -> None:
        start, stop = op.start, op.stop
        origin = self._origin(start, stop)
        with self.replay.noting_use():
            state, tape = self.backend.record(self._working.pop(), start, stop)
        if self.machine.cotangent is not None and self.determinism is not None:
            self.determinism.compare(stop, self._fingerprinted, state, recorded=stop - start)
            # Over many recorded steps the tolerance is loose, so a suspicious state is recomputed without a tape.
            if origin and self.determinism.may_differ(stop, self._fingerprinted, state):
                self._confirm(*origin, start, stop)
        if self.restartable:
            state = self.backend.copy(state)  # record() may return aliases of values that a step writes into
            self._tape_ends[stop] = state, self.replay.snapshot()
        self._working.append(state)
        self.tapes[start, stop] = tape
        self.done += stop - start

    def _origin(self, start: int, stop: int) -> tuple[Any, Any] | None:
        """The state and rng state before a long range, to recompute it for the determinism check; None if not needed.

        It costs no memory: the tape of the range refers to that state anyway.
        """
        if self.determinism is None or self.machine.cotangent is None:
            return None
        if stop - start < LONG:
            return None
        return self._working[0], self._fetched[1] if self._fetched[0] == start else self.replay.present()

    def _confirm(self, state: Any, rng: Any, start: int, stop: int) -> None:
        """Recompute a range as the first sweep ran it, without a tape, so that rounding cannot explain a difference."""
        assert self.determinism is not None
        rng_now = self.replay.snapshot()
        self.replay.restore(rng)
        try:
            state = self.backend.advance(self.backend.copy(state), start, stop)
            self._compare_advanced(state, start, stop)
        finally:
            self.replay.restore(rng_now)

    def _compare_advanced(self, state: Any, start: int, stop: int) -> None:
        """Compare a state that was recomputed without a tape."""
        assert self.determinism is not None
        recorded = self._fingerprinted.recorded_at_first(start, stop)
        self.determinism.compare(stop, self._fingerprinted, state, recorded=recorded)

    def _pull_back(self, op: Pullback) -> None:
        if self.machine.working is not None and self.machine.working >= op.start:
            self._working = []  # no later op can use a state at or past the cotangent: free it
        self._tape_ends.pop(op.stop, None)
        # User code that a pullback runs (hooks, derivative rules) is not a recomputation: it draws random numbers and
        # writes logs from the states with which the program continues.
        self.replay.settle(contents=True)
        inside = None if self._outside is None else self.replay.go_outside(self._outside)
        try:
            self._gradients.append(self.backend.pull_back(self.tapes.pop((op.start, op.stop)), self._gradients.pop()))
        finally:
            self._outside = None if inside is None else self.replay.come_back(inside, self._outside)
            self._outside = self.replay.take_contents(self._outside)
        self.done += op.stop - op.start

    def _keep(self, op: Keep) -> None:
        # The run continues with the copy as well: the original, which may alias the user's arrays, is freed.
        self._working = [self.backend.copy(self._working.pop())]
        first_sweep = self.machine.cotangent is None
        if self.determinism is not None and first_sweep and op.state > 0:
            self.determinism.record_kept(op.state, self._fingerprinted, self._working[0])
        # No generator is used before the first step, and the reverse sweep uses none that the first sweep did not.
        may_be_used = op.state > 0 and (first_sweep or self.replay.used)
        self.stores[op.level].put(op.state, self._working[0])
        self._rng[op.state, op.level] = self.replay.snapshot() if may_be_used else self.replay.initial
        self._seals[op.state, op.level] = self.backend.seal(self._working[0])

    def _fetch(self, op: Fetch) -> None:
        if op.level == TAPE:
            state, rng = self._tape_ends[op.state]
        else:
            state, rng = self._kept(op.state, op.level), self._rng[op.state, op.level]
        self.replay.restore(rng)
        self._working, self._fetched = [state], (op.state, rng)

    def _kept(self, number: int, level: str) -> Any:
        """A kept state; an output that was written into meanwhile is recomputed from the kept state before it."""
        state = self.stores[level].get(number)
        if self.backend.seal(state) == self._seals[number, level]:
            return state
        before = max(key for key in self._rng if key[0] < number)  # there is one: state 0 is never an output
        state = self.backend.copy(self._kept(*before))
        self.replay.restore(self._rng[before])
        return self.backend.advance(state, before[0], number)

    def _drop(self, op: Drop) -> None:
        self.stores[op.level].drop(op.state)
        del self._rng[op.state, op.level], self._seals[op.state, op.level]

    def _turn(self, op: Turn) -> None:
        self.replay.snapshot()  # for its side effect: `replay.used` now says whether the first sweep used a generator


_RUN: dict[type, Any] = {
    Advance: Interpreter._advance,
    Record: Interpreter._record,
    Pullback: Interpreter._pull_back,
    Keep: Interpreter._keep,
    Fetch: Interpreter._fetch,
    Drop: Interpreter._drop,
    Turn: Interpreter._turn,
}


class LiveSizes:
    """The known sizes of one run, in the form in which the machine expects those of a problem.

    Without an observer they are all 0: the machine then only tracks which values are live.
    """

    units = 0

    def __init__(self, state: int = 0, *, restartable: bool) -> None:
        self.restartable = restartable
        self.state = self._cotangent = state
        self.tapes: dict[tuple[int, int], int] = {}

    def unit_name(self, unit: int) -> str:
        """An empty name: the units of a run have none."""
        return ""

    def state_size(self, state: int) -> int:
        """Bytes of a state: all are assumed to be as large as the last one."""
        return self.state

    def tape_size(self, start: int, stop: int) -> int:
        """Bytes of the tape of a range."""
        return self.tapes.get((start, stop), 0)

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """Bytes of a step's input and output states."""
        return 2 * self.state

    def pulling_size(self, start: int, stop: int) -> int:
        """Bytes of the cotangents of a step's output and input."""
        return 2 * self._cotangent
