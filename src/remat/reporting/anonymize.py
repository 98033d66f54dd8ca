"""Remove the user's names and paths from subjects, for reports that are shared; numbers stay."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from remat.ops import TAPE
from remat.planners import Plan
from remat.problem import Chain, Level, Memory
from remat.profiling.tape_contents import TapeContents
from remat.reporting.report_subject import ReportSubject
from remat.schedule import Drop, Event, Fetch, Keep, Trace

__all__ = ["anonymous"]


def anonymous(subject: ReportSubject, number: int) -> ReportSubject:
    """The subject labelled `run <number>` or `plan <number>`, with numbered levels and without sources and reasons."""
    memory = subject.plan.memory if subject.plan else subject.trace.memory
    levels = [] if memory is None else [level.name for level in memory.levels]
    distinct = dict.fromkeys([*levels, subject.trace.device, *subject.trace.keeps, *subject.trace.peaks])
    names = {name: f"level{i}" for i, name in enumerate(distinct)} | {TAPE: TAPE}
    return replace(
        subject,
        label=f"{'run' if subject.trace.measured else 'plan'} {number}",
        trace=_trace(subject.trace, names),
        predicted=subject.predicted and _trace(subject.predicted, names),
        plan=subject.plan and _plan(subject.plan, names),
        sized=subject.sized and _plan(subject.sized, names),
        source="",
        tape=None if subject.tape is None else _tape(subject.tape),
        warning="The run is not complete." if subject.warning and subject.trace.measured else subject.warning,
    )


def _trace(trace: Trace, names: dict[str, str]) -> Trace:
    at_peak = tuple((what.partition(" (")[0], names.get(level, level), size) for what, level, size in trace.at_peak)
    tables = ("keeps", "fetches", "written", "read", "peaks")
    renamed: dict[str, Any] = {name: _renamed(getattr(trace.totals, name), names) for name in tables}
    return replace(
        trace,
        device=names[trace.device],
        totals=replace(trace.totals, **renamed),
        events=_Events(trace.events, names),
        find_holders=lambda _: at_peak,
        memory=None if trace.memory is None else _memory(trace.memory, names),
    )


def _plan(plan: Plan, names: dict[str, str]) -> Plan:
    within = plan.claim.within
    for name, other in names.items():
        within = within.replace(f" in {name} alone", f" in {other} alone")
    problem = plan.problem
    if isinstance(problem, Chain):  # graphs contain the user's modules and files
        problem = Chain([replace(stage, graph=None) for stage in problem.stages], problem.input)
    claim = replace(plan.claim, within=within)
    return replace(plan, problem=problem, memory=_memory(plan.memory, names), reason="", claim=claim)


def _tape(tape: TapeContents) -> TapeContents:
    return replace(tape, tensors=tuple(replace(each, line="", module="") for each in tape.tensors))


def _memory(memory: Memory, names: dict[str, str]) -> Memory:
    return Memory(
        levels=[
            Level(names[level.name], level.capacity, slots=level.slots, read=level.read, write=level.write)
            for level in memory.levels
        ]
    )


def _renamed(sizes: dict[str, int], names: dict[str, str]) -> dict[str, int]:
    return {names.get(level, level): size for level, size in sizes.items()}


@dataclass(frozen=True)
class _Events:
    """Events with new names for their levels."""

    events: Iterable[Event]
    names: dict[str, str]

    def __iter__(self) -> Iterator[Event]:
        for event in self.events:
            op, live = event.op, event.live
            if isinstance(op, Keep | Fetch | Drop):
                op = replace(op, level=self.names.get(op.level, op.level))
            live = replace(live, device=self.names[live.device], state=_renamed(dict(live.state), self.names))
            yield replace(event, op=op, live=live)
