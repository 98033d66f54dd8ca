"""What a schedule costs: seconds and live bytes, op by op, without running anything.

`simulate` takes a schedule, a problem and (for the cost of moving states) a memory, and returns a `Trace`. It streams:
totals take one pass, whose memory grows only with what is live at once; events are simulated again at each iteration.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from remat.ops import TAPE, Advance, Fetch, Keep, Op, Pullback, Record, Run
from remat.problem import Level, Memory, Problem
from remat.progress import report_progress
from remat.schedule.chain_machine import machine_for
from remat.schedule.events import Event, Totals
from remat.schedule.live import LiveItem
from remat.schedule.schedule import Schedule
from remat.schedule.trace import Trace
from remat.schedule.verify import check_order, run_legally

__all__ = ["simulate"]

PROGRESS_INTERVAL = 10_000  # ops between two reports of progress


def simulate(schedule: Iterable[Op], problem: Problem, memory: Memory | int | str | None = None) -> Trace:
    """The trace of `schedule` reversing `problem`; without `memory`, moving states takes no time.

    Args:
        schedule: The ops.
        problem: What they reverse, with its sizes and times.
        memory: Levels with the costs of moving states; only `verify` checks capacities.

    Returns:
        A trace: steps, bytes and seconds, in total and op by op.

    Raises:
        IllegalError: If the schedule breaks a rule, which the message names.

    Example:
        >>> from remat import Loop, plan
        >>> simulate(plan(Loop(10), slots=3).schedule, Loop(10)).forward_steps
        25
    """
    check_order(schedule, "simulate(schedule, problem)")
    ops = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
    levels = _only_level(ops) if memory is None else Memory.of(memory)
    clock = _Clock(problem, levels)
    machine = machine_for(problem, levels)
    totals = Totals(peaks={machine.device: machine.device_size})
    for index, op in run_legally(machine, ops):
        totals.count(machine, index, op)
        totals.seconds += clock.seconds(op)
        if index % PROGRESS_INTERVAL == 0:
            report_progress(index, None)
    events = _Events(ops, problem, levels, clock)
    return Trace(problem.units, machine.device, totals, events, events.holders, levels, timed=problem.timed)


def _only_level(schedule: Schedule) -> Memory | None:
    """The memory of a schedule that keeps states in only one level: that level is the device, whatever its name."""
    names: set[str] = set()
    for op in schedule:
        if isinstance(op, Keep):
            names.add(op.level)
            if op.level == "ram" or len(names) > 1:
                return None
    return Memory(levels=[Level(names.pop())]) if names and TAPE not in names else None


class _Clock:
    """The seconds of an op, from the problem's times and the memory's read and write costs."""

    def __init__(self, problem: Problem, memory: Memory | None) -> None:
        self.problem = problem
        levels = () if memory is None else memory.levels
        self.read = {level.name: level.read for level in levels}
        self.write = {level.name: level.write for level in levels}
        self.options: dict[int, int] = {}  # the first unit of a recorded range → its option

    def seconds(self, op: Op) -> float:
        match op:
            case Advance(start, stop):
                return self.problem.advance_time(start, stop)
            case Run(operation):
                return self.problem.advance_time(operation, operation + 1)
            case Record(start, stop, option):
                self.options[start] = option
                return self.problem.record_time(start, stop, option)
            case Pullback(stop, start):
                return self.problem.pullback_time(start, stop, self.options.pop(start, 0))
            case Keep(state, level):
                return self.write.get(level, 0.0) * self.problem.state_size(state)
            case Fetch(state, level) if level != TAPE:
                return self.read.get(level, 0.0) * self.problem.state_size(state)
        return 0.0


@dataclass(frozen=True)
class _Events:
    """The events of a simulated run, simulated again at each iteration."""

    schedule: Schedule
    problem: Problem
    memory: Memory | None
    clock: _Clock

    def __iter__(self) -> Iterator[Event]:
        machine, now = machine_for(self.problem, self.memory), 0.0
        for index, op in run_legally(machine, self.schedule):
            seconds = self.clock.seconds(op)
            yield Event(index, op, now, seconds, machine.live())
            now += seconds

    def holders(self, at: int) -> tuple[LiveItem, ...]:
        """Everything live while op `at` runs."""
        machine = machine_for(self.problem, self.memory)
        for index, _ in run_legally(machine, self.schedule):
            if index == at:
                return tuple(machine.holders())
        return ()
