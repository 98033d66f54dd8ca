"""The profiler: what every remat call did, per call site, beside what was planned. Without it nothing is measured.

In: calls, from the interface, and runs of schedules, from the interpreter. Out: a `Profile`, to be printed, saved and
reported. A profile hears the calls of its own context; one that was opened in the main thread hears other threads too.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from textwrap import wrap
from time import perf_counter
from typing import Any, ClassVar

from remat.execute.recomputation import StopRecomputation, is_recomputing
from remat.problem.serialization import Serializable
from remat.profiling.call_record import CallRecord
from remat.profiling.segment_passes import SegmentPass
from remat.profiling.source_location import SourceLocation, definition_of, user_frame
from remat.profiling.trace_recorder import ActiveMeters
from remat.schedule.display import Displayable
from remat.units import bytes_text, count_text

__all__ = ["MOST_PASSES", "MOST_TRACES", "CallSiteStats", "Profile", "profile", "recorded_call", "segment_pass"]

MOST_TRACES = 16  # traces that are held for a call site; of later calls only the totals are
MOST_PASSES = 10_000  # passes that are held
_SHOWN = 60  # passes that are printed

_active: ContextVar[tuple["Profile", ...]] = ContextVar("heard", default=())
_active_all_threads: list["Profile"] = []  # opened in the main thread: these hear other threads too
_lock = threading.Lock()


@dataclass(frozen=True)
class CallSiteStats:
    """A line of the user's code, what it called, and what came of all these calls."""

    what: str
    site: SourceLocation
    calls: tuple[CallRecord, ...]

    @property
    def steps(self) -> int:
        """Forward steps that were run."""
        ran = sum(run.totals.advances + run.totals.records for call in self.calls for run in call.runs)
        return ran + sum(call.steps or 0 for call in self.calls if not call.runs and not call.compiled)

    @property
    def planned(self) -> int | None:
        """Forward steps that were planned, if there was a plan; what had none or ended early counts as it was run."""
        if all(call.plan is None for call in self.calls):
            return None
        sums = self.steps
        for call in self.calls:
            if call.compiled and call.plan is not None:
                sums += call.plan.forward_steps
            for run in call.runs:
                if run.complete and call.plan is not None:
                    sums += call.plan.forward_steps - run.totals.advances - run.totals.records
        return sums

    @property
    def peak(self) -> int | None:
        """The largest peak of all runs; None without any."""
        return max((run.peak for call in self.calls for run in call.runs), default=None)

    @property
    def seconds(self) -> float:
        """The time of all calls and of their reverse sweeps."""
        return sum(call.total_seconds for call in self.calls)

    def lines(self) -> Iterator[str]:
        """The lines of the profile's table."""
        planned, peak = self.planned, self.peak
        yield (
            f"{f'{self.what} at {self.site.short}':<30.30}{count_text(len(self.calls)):>6}"
            f"{'-' if all(call.compiled for call in self.calls) else count_text(self.steps):>11}"
            f"{'-' if planned is None else count_text(planned):>11}{'-' if peak is None else bytes_text(peak):>11}"
            f"{self.seconds:>10.3g}"
        )
        plan = next((call.plan for call in reversed(self.calls) if call.plan is not None), None)
        if plan is not None:
            yield from wrap(f"{plan.planner}: {plan.claim}", 79, initial_indent="  ", subsequent_indent="  ")
        ended = [call.status for call in self.calls if call.status not in ("done", "no gradient")]
        for status in dict.fromkeys(ended):
            yield f"  {count_text(ended.count(status))} of {count_text(len(self.calls))}: {status}"[:79]


class Profile(Displayable, Serializable):
    """What happened while a `with remat.profile() as run:` block ran; `calls` has one entry for each remat call.

    `passes` says in which order segments were run forward, recomputed and pulled back.
    """

    kind: ClassVar[str] = "profile"

    def __init__(self, calls: list[CallRecord] | None = None, *, memory: bool = False) -> None:
        self.calls: list[CallRecord] = [] if calls is None else calls
        self.passes: list[SegmentPass] = []
        self.memory = memory
        self.meters = ActiveMeters()
        self.open = True
        self._traced: dict[tuple[str, SourceLocation], int] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def places(self) -> "list[CallSiteStats]":
        """What was called where, in the order of the first calls."""
        found: dict[tuple[str, SourceLocation], list[CallRecord]] = {}
        for call in tuple(self.calls):
            found.setdefault((call.what, call.site), []).append(call)
        return [CallSiteStats(what, site, tuple(calls)) for (what, site), calls in found.items()]

    def trace_more(self, what: str, site: SourceLocation) -> bool:
        """Whether the events of one more call from there are to be held."""
        count = self._traced[what, site] = self._traced.get((what, site), 0) + 1
        return count <= MOST_TRACES

    def __str__(self) -> str:
        if not self.calls:
            return "no remat calls were made"
        head = f"{'call':<30}{'calls':>6}{'steps run':>11}{'planned':>11}{'peak':>11}{'seconds':>10}"
        rows = [head, "-" * len(head)]
        for place in self.places():
            rows += place.lines()
        if self.passes:
            rows += ["", "passes over segments, in order", *(f"  {each}"[:79] for each in self.passes[:_SHOWN])]
            left = len(self.passes) - _SHOWN
            rows += [f"  and {count_text(left)} more"] if left > 0 else []
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain data; plans are saved without their ops, which the traces have."""
        return {
            "memory": self.memory,
            "calls": [call.to_dict() for call in self.calls],
            "passes": [each.to_dict() for each in self.passes],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Profile":
        """The profile from plain data."""
        found = cls([CallRecord.from_dict(entry) for entry in data["calls"]], memory=bool(data["memory"]))
        found.passes = [SegmentPass.from_dict(entry) for entry in data.get("passes", ())]
        return found


@contextmanager
def profile(*, memory: bool = False) -> Iterator[Profile]:
    """Record every remat call in the block: steps, bytes and seconds, planned and measured, per call site.

    Profiles nest, and threads may call at once. With `memory` the framework's allocator is asked too, around every op:
    NumPy's takes time to count. What was recorded when an error or Ctrl-C ended the block is still there.

    >>> import autograd.numpy as np, remat
    >>> from autograd import grad
    >>> with remat.profile() as run:
    ...     slope = grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=10, slots=3)[0])(0.5)
    >>> run.calls[0].trace.forward_steps, run.calls[0].plan.forward_steps
    (25, 25)
    """
    opened = Profile(memory=memory)
    _active.set((*_active.get(), opened))
    main = threading.current_thread() is threading.main_thread()
    if main:
        with _lock:
            _active_all_threads.append(opened)
    try:
        yield opened
    finally:
        opened.open = False
        opened.meters.close()
        if main:
            with _lock:
                _active_all_threads.remove(opened)
        _active.set(tuple(each for each in _active.get() if each is not opened))  # blocks may end in any order


def _active_profiles() -> tuple[Profile, ...]:
    heard = tuple(each for each in _active.get() if each.open)  # a block may end in another context
    if _active_all_threads and threading.current_thread() is not threading.main_thread():
        with _lock:
            heard = (*heard, *(each for each in _active_all_threads if each not in heard))
    return heard


@contextmanager
def recorded_call(what: str, step: Callable[..., Any] | None) -> Iterator[CallRecord | None]:
    """The entry of a call that runs in the block, or None if nobody listens."""
    listening = _active_profiles()
    if not listening:
        yield None
        return
    site = user_frame()
    with _lock:
        traced = [each.trace_more(what, site) for each in listening]
        meters = next((each.meters for each in listening if each.memory), None)
        call = CallRecord(what, site, definition_of(step), traced=any(traced), meters=meters)
        for each in listening:
            each.calls.append(call)
    began = perf_counter()
    try:
        yield call
    except StopRecomputation:  # what is around this call is recomputed, and needs no more
        raise
    except BaseException as error:
        call.stopped = type(error).__name__
        raise
    finally:
        call.seconds = perf_counter() - began


@contextmanager
def segment_pass(name: str, what: str, depth: int, *, since: float | None = None) -> Iterator[None]:
    """A block that is one pass over a segment, told to whoever listens; it may have begun before, at `since`."""
    listening = _active_profiles()
    if not listening:
        yield
        return
    noted = SegmentPass(name, what, depth, what == "forward" and is_recomputing())
    with _lock:
        places = [(each, len(each.passes)) for each in listening if len(each.passes) < MOST_PASSES]
        for each, _ in places:
            each.passes.append(noted)
    began = perf_counter() if since is None else since
    try:
        yield
    finally:
        noted = replace(noted, seconds=max(0.0, perf_counter() - began))
        for each, place in places:
            each.passes[place] = noted
