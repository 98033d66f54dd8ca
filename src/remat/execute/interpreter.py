"""The interpreter: one plain loop over ops, the same for every framework.

In: ops (whole schedules, or a few at a time for a loop of unknown length) and the verbs of a framework. Out: state n at
the turn, the cotangent of state 0 at the end. What a schedule drops is free at once: nothing here or in a caller's
frame holds a state or a tape longer than the schedule says.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from remat.errors import IllegalError
from remat.execute.backend_protocol import Backend
from remat.execute.determinism import DeterminismCheck
from remat.execute.rng_state import StateReplay
from remat.profiling.trace_recorder import TraceRecorder
from remat.progress import Progress
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn
from remat.schedule.notation import format_op

__all__ = ["Interpreter"]

LONG = 4  # steps of a recorded range over which rounding may grow so much that a comparison says nothing


class Interpreter:
    """One run of a schedule: `play` its ops up to the turn, take `state`, then `reverse` the cotangent of it."""

    def __init__(
        self,
        backend: Backend,
        state: Any,
        units: int | None,
        *,
        determinism: DeterminismCheck | None = None,
        progress: Progress | None = None,
        total: int | None = None,
        recorder: TraceRecorder | None = None,
        replay: StateReplay | None = None,
    ) -> None:
        self.backend, self.units, self.recorder = backend, units, recorder
        self.determinism, self.progress, self.total = determinism, progress, total
        self.at: int | None = 0  # the number of the working state
        self.pulled: int | None = None  # the state whose cotangent is in flight; None before the turn
        self.cotangent: Any = None
        self.kept: dict[tuple[int, str], tuple[Any, Any]] = {}  # state and mark of the random generators
        self.tapes: dict[tuple[int, int], Any] = {}
        self.replay = StateReplay(backend.replayable_states) if replay is None else replay
        self.done = 0
        self._fetched: tuple[int, Any] = (-1, None)  # the last state that was fetched, and its mark
        self._rest: Iterator[Op] = iter(())
        self._working = [state]  # in a list, so that it can be handed over without being held here

    @property
    def state(self) -> Any:
        """The working state."""
        return self._working[0]

    def take(self) -> Any:
        """The result, at the turn; it is not held here any longer."""
        self.at = None
        return self._working.pop()

    def play(self, ops: Iterable[Op]) -> bool:
        """Carry out ops up to the turn (True) or to their end (False)."""
        try:
            return self._play(ops)
        except BaseException as error:  # Ctrl-C too
            if self.recorder is not None:
                self.recorder.stop(error, self)
            raise

    def _play(self, ops: Iterable[Op]) -> bool:
        recorder, progress = self.recorder, self.progress
        self._rest = iter(ops)
        for op in self._rest:
            if recorder is not None:
                recorder.begin(op)
            match op:
                case Advance(start, stop):
                    self._expect(op, self.at == start)
                    self._advance(start, stop)
                case Record(start, stop):
                    self._expect(op, self.at == start)
                    self._record(start, stop)
                case Pullback(stop, start):
                    self._expect(op, self.pulled == stop and (start, stop) in self.tapes)
                    self._pull_back(start, stop)
                case Keep(state, level):
                    self._expect(op, self.at == state)
                    self._working = [self.backend.copy(self._working.pop())]  # go on with the private copy
                    if self.determinism is not None and self.pulled is None and state > 0:
                        self.determinism.record_kept(state, self.backend, self._working[0])
                    # Whether the generators may have moved; before the first step they have not.
                    may_have_moved = state > 0 and (self.pulled is None or self.replay.used)
                    self.kept[state, level] = (
                        self._working[0],
                        self.replay.snapshot() if may_have_moved else self.replay.initial,
                    )
                case Fetch(state, level):
                    self._expect(op, (state, level) in self.kept)
                    kept, snapshot = self.kept[state, level]
                    self.replay.restore(snapshot)
                    self._working, self.at, self._fetched = [kept], state, (state, snapshot)
                    del kept
                case Drop(state, level):
                    self._expect(op, (state, level) in self.kept)
                    del self.kept[state, level]
                case Turn():
                    self._expect(op, self.pulled is None and (self.units is None or self.at == self.units))
                    self.replay.snapshot()
                    self.units = self.pulled = self.at
            if recorder is not None:
                recorder.end(op, self)
            if progress is not None:
                progress.update(self.done, self.total)
            if type(op) is Turn:
                return True
        return False

    def reverse(self, cotangent: Any) -> Any:
        """The cotangent of state 0: play the ops after the turn, with the cotangent of state n."""
        self._working, self.at = [], None  # the result is out
        self.cotangent = cotangent
        del cotangent
        outside = self.replay.snapshot() if self.replay.used else None
        try:
            self.play(self._rest)
        finally:
            self.replay.restore(outside)
        if self.determinism is not None:
            self.determinism.finish(self.backend)
        if self.pulled != 0 or self.kept or self.tapes:
            raise IllegalError(
                f"the schedule ended with the cotangent at state {self.pulled}, {len(self.kept)} states kept and "
                f"{len(self.tapes)} tapes held; at its end all is pulled back and nothing is held"
            )
        return self.cotangent

    def _advance(self, start: int, stop: int) -> None:
        if self.pulled is None and self.determinism is not None:
            at = start
            while at < stop:
                at, before = self.determinism.next_stop(at, stop), at
                self._working.append(self.backend.advance(self._working.pop(), before, at))
                self.determinism.record(at, self.backend, self._working[0])
        else:
            self._working.append(self.backend.advance(self._working.pop(), start, stop))
            if self.determinism is not None:
                self.determinism.compare(stop, self.backend, self._working[0], recorded=0)
        self.at = stop
        self.done += stop - start

    def _record(self, start: int, stop: int) -> None:
        origin = self._origin(start, stop)
        state, tape = self.backend.record(self._working.pop(), start, stop)
        if self.pulled is not None and self.determinism is not None:
            self.determinism.compare(stop, self.backend, state, recorded=stop - start)
            if origin and self.determinism.may_differ(stop, self.backend, state):
                self._confirm(*origin, start, stop)
        self._working.append(state)
        self.tapes[start, stop] = tape
        self.at = stop
        self.done += stop - start

    def _origin(self, start: int, stop: int) -> tuple[Any, Any] | None:
        """The state and the mark from which a long range is recorded again; its tape holds that state anyway."""
        if self.determinism is None or self.pulled is None or stop - start < LONG or self._fetched[0] != start:
            return None
        return self._working[0], self._fetched[1]

    def _confirm(self, state: Any, snapshot: Any, start: int, stop: int) -> None:
        """Run steps again as the first sweep ran them: rounding that has grown over a recorded range is not there."""
        assert self.determinism is not None
        now = self.replay.snapshot()
        self.replay.restore(snapshot)
        try:
            state = self.backend.advance(self.backend.copy(state), start, stop)
            self.determinism.compare(stop, self.backend, state, recorded=0)
        finally:
            self.replay.restore(now)

    def _pull_back(self, start: int, stop: int) -> None:
        if self.at is not None and self.at >= start:
            self._working, self.at = [], None  # nothing can use a state at or past the cotangent
        cotangent, self.cotangent = [self.cotangent], None
        self.cotangent = self.backend.pull_back(self.tapes.pop((start, stop)), cotangent.pop())
        self.pulled = start
        self.done += stop - start

    def _expect(self, op: Op, holds: bool) -> None:
        if not holds:
            raise IllegalError(
                f"the schedule is not legal at {format_op(op)!r}: the working state is {self.at}, the cotangent is at "
                f"{self.pulled}, {len(self.kept)} states are kept, {len(self.tapes)} tapes are held; "
                "remat.verify names the broken rule"
            )
