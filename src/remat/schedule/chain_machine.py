"""What is live while a chain runs: states are shared, so each state counts once, however many holders it has.

A state is held if it is kept, or if it is the input or output of a stored tape whose option holds that state. The
memory model, op by op, where `held` is the bytes of held states and tapes, c the bytes of the waiting cotangent (0
before the turn), x_i the bytes of state i, and F, R, P the peaks of `Stage` (running, recording, pulling back):

    advance s j      the largest over i = s..j-1 of  held + c + (x_i unless it is held) + F_i
    record i i+1 o   held + c + (x_i unless it is held) + R_io;  then the tape is stored and holds its states
    pullback i+1 i   held without this tape + x_i if the tape holds it + P_io;  then the tape is freed, and c is x_i
    other ops        held + c + (the working state unless it is held)

A range of several stages is recorded and pulled back stage by stage. At the turn itself no cotangent counts: the peak
of the first pullback includes the cotangent of the result.
"""

from bisect import bisect_left

from remat.ops import Advance, Drop, Keep, Pullback, Record, Turn
from remat.problem import Chain, Graph, Memory, Sizes
from remat.schedule.graph_machine import GraphMachine
from remat.schedule.live import LiveItem
from remat.schedule.machine import Machine, ranges_text

__all__ = ["ChainMachine", "machine_for"]


class ChainMachine(Machine):
    """The machine for chains: a state with several holders counts once."""

    problem: Chain

    def __init__(self, problem: Chain, memory: Memory | None = None) -> None:
        super().__init__(problem, memory)
        self.tape_options: dict[int, int] = {}  # first stage of a tape → the option it was recorded with
        self._holders: dict[int, int] = {}  # state on the device → number of holders
        self._held = 0  # bytes of these states
        self._held_during = 0  # the same while the last op ran

    @property
    def state_size(self) -> int:
        """Bytes of the distinct states held on the device while the last op ran."""
        return self._held_during

    def option_count(self, start: int, stop: int) -> int:
        """The number of options that all of these stages have."""
        return min(len(stage.options) for stage in self.problem.stages[start:stop])

    def unrepeatable(self, start: int, stop: int) -> int | None:
        """The first of these stages that must not run twice, or None."""
        return next((i for i in range(start, stop) if not self.problem.stages[i].repeatable), None)

    def _advance(self, op: Advance) -> None:
        self.working = op.stop
        peak = max(self._unheld(i) + self.problem.stages[i].running_peak for i in range(op.start, op.stop))
        self._set(peak, self._resting_cotangent)
        self.just_recorded_size = 0

    def _record(self, op: Record) -> None:
        before, tape, peak = self._after_tape, self._after_tape, 0
        for i in range(op.start, op.stop):
            stage = self.problem.stages[i]
            peak = max(peak, self._held + tape + self._unheld(i) + stage.record_peak(op.option))
            tape += stage.options[op.option].tape
            self._hold(*self._states_of(i, op.option))
        self.tapes.insert(bisect_left(self.tapes, (op.start,)), (op.start, op.stop, tape - before))
        self.tape_options[op.start] = op.option
        self.working = op.stop
        self.tape_size = self._after_tape = tape
        self.just_recorded_size = tape - before
        self._set(peak - tape - self._held, self._resting_cotangent)

    def _pullback(self, op: Pullback) -> None:
        place = self.find_tape(op.start, op.stop)
        assert place is not None
        self.tapes.pop(place)
        option, tape, peak = self.tape_options.pop(op.start), self._after_tape, 0
        if self.working is not None and self.working >= op.start:
            self.working = None  # nothing uses a state at or after the cotangent's
        for i in reversed(range(op.start, op.stop)):
            stage, chosen = self.problem.stages[i], self.problem.stages[i].options[option]
            tape -= chosen.tape
            self._release(*self._states_of(i, option))
            held = self._held + (self._unheld(i) if chosen.holds_input else 0)
            if chosen.holds_output and i + 1 in self._holders:
                held -= self._x(i + 1)  # already in the peak of the pullback
            working = 0 if self.working in (None, i) else self._unheld(self.working)
            peak = max(peak, held + tape + working + stage.pullback_peak(option, self._x(i)))
        self._after_tape = tape
        self.cotangent, self._pulled_back = op.start, (op.start, op.stop - 1)
        self._resting_cotangent = self._x(op.start)
        self.just_recorded_size = 0
        running = self._unheld(self.working)
        self._set(running, peak - self.tape_size - self._held - running)

    def _keep(self, op: Keep) -> None:
        if op.level == self.device:
            self._hold(op.state)
        super()._keep(op)

    def _drop(self, op: Drop) -> None:
        if op.level == self.device:
            self._release(op.state)
        super()._drop(op)

    def _turn(self, op: Turn) -> None:
        super()._turn(op)
        self.pulling_size = 0

    def _settle(self) -> None:
        self._set(self._unheld(self.working), self._resting_cotangent)

    def holders(self) -> list[LiveItem]:
        """Everything live as (what, level, bytes): kept states, tapes, working state, cotangent, states in tapes."""
        items = super().holders()
        only_tapes = sorted(self._holders.keys() - self.kept.get(self.device, {}).keys())
        size = sum(map(self._x, only_tapes))
        return items + [(f"states {ranges_text(only_tapes)} held by tapes", self.device, size)] * bool(size)

    def _set(self, running: int, pulling: int) -> None:
        self._held_during, self.running_size, self.pulling_size = self._held, running, pulling

    def _hold(self, *states: int) -> None:
        for state in states:
            if state not in self._holders:
                self._held += self._x(state)
            self._holders[state] = self._holders.get(state, 0) + 1

    def _release(self, *states: int) -> None:
        for state in states:
            self._holders[state] -= 1
            if not self._holders[state]:
                del self._holders[state]
                self._held -= self._x(state)

    def _states_of(self, stage: int, option: int) -> list[int]:
        """The states that the tape of a stage holds."""
        chosen = self.problem.stages[stage].options[option]
        return [stage] * chosen.holds_input + [stage + 1] * chosen.holds_output

    def _unheld(self, state: int | None) -> int:
        """Bytes of a state in use; 0 if it is None, or is held and therefore already counted."""
        return 0 if state is None or state in self._holders else self._x(state)

    def _x(self, state: int) -> int:
        return self.problem.state_size(state)


def machine_for(problem: Sizes, memory: Memory | None = None) -> Machine:
    """The machine for a kind of problem: chains count a state once, loops once per holder."""
    if isinstance(problem, Graph):
        return GraphMachine(problem, memory)
    return ChainMachine(problem, memory) if isinstance(problem, Chain) else Machine(problem, memory)
