"""The profiler: planned and measured steps, bytes and seconds of every remat call, per call site.

The interface reports calls, the interpreter runs of schedules; the result is a `Profile`, which can be printed, saved
and reported. A profile records the calls of its own context; a profile opened in the main thread also records those of
other threads, such as PyTorch's backward threads. Without an active profile nothing is measured.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from textwrap import wrap
from time import perf_counter
from typing import Any, ClassVar

from remat.execute.recomputation import StopRecomputation, is_recomputing
from remat.problem.serialization import Serializable
from remat.profiling.call_record import CallRecord
from remat.profiling.model_record import ModelRecord
from remat.profiling.segment_contents import KeptBlock, SegmentContents
from remat.profiling.segment_passes import SegmentPass
from remat.profiling.source_location import SourceLocation, definition_of, user_frame
from remat.profiling.trace_recorder import ActiveMeters
from remat.schedule.display import Displayable
from remat.units import bytes_text, count_text, seconds_text

__all__ = [
    "MOST_PASSES",
    "MOST_TRACES",
    "CallSiteStats",
    "Profile",
    "is_in_loop",
    "is_profiling",
    "name_segment",
    "note_model",
    "profile",
    "recorded_call",
    "register_observer",
    "segment_pass",
    "unprofiled",
]

# Bounds on what a profile of a whole training run stores and prints.
MOST_TRACES = 16  # calls per call site whose events are stored; later calls store only their totals
MOST_PASSES = 10_000  # segment passes to store
_SHOWN = 60  # segment passes to print

# Calls that are loops: the loop's plan counts what their steps keep.
LOOPS = frozenset({"scan", "while_loop", "checkpointed", "checkpointed_loop", "binomial_checkpoint"})
_in_loop: ContextVar[bool] = ContextVar("in_loop", default=False)
_active: ContextVar[tuple["Profile", ...]] = ContextVar("active_profiles", default=())
_active_all_threads: list["Profile"] = []  # opened in the main thread
_lock = threading.Lock()


@dataclass(frozen=True)
class CallSiteStats:
    """The statistics of all calls of one function (`what`) from one line of the user's code (`site`)."""

    what: str
    site: SourceLocation
    calls: tuple[CallRecord, ...]

    @property
    def steps(self) -> int:
        """Forward steps that were run; a call without a run was not differentiated and ran each step once."""
        ran = sum(run.totals.advances + run.totals.records for call in self.calls for run in call.runs)
        return ran + sum(call.steps or 0 for call in self.calls if not call.runs and not call.compiled)

    @property
    def planned(self) -> int | None:
        """Forward steps that were planned, or None if there is no plan.

        Runs that have no plan or ended early count with the steps that they ran, so that the number compares with
        `steps`.
        """
        if all(call.plan is None for call in self.calls):
            return None
        total = self.steps
        for call in self.calls:
            if call.compiled and call.plan is not None:
                total += call.plan.forward_steps
            for run in call.runs:
                if run.complete and call.plan is not None:
                    total += call.plan.forward_steps - run.totals.advances - run.totals.records
        return total

    @property
    def peak(self) -> int | None:
        """The largest peak of all runs, in bytes; None without runs."""
        return max((run.peak for call in self.calls for run in call.runs), default=None)

    @property
    def seconds(self) -> float:
        """Seconds of all calls and of their reverse sweeps."""
        return sum(call.total_seconds for call in self.calls)

    def lines(self) -> Iterator[str]:
        """The rows of the profile's table for this call site."""
        planned, peak = self.planned, self.peak
        yield (
            f"{f'{self.what} at {self.site.short}':<29.29}{count_text(len(self.calls)):>6}"
            f"{'-' if all(call.compiled for call in self.calls) else count_text(self.steps):>11}"
            f"{'-' if planned is None else count_text(planned):>11}{'-' if peak is None else bytes_text(peak):>12}"
            f"{seconds_text(self.seconds):>10}"
        )
        plan = next((call.plan for call in reversed(self.calls) if call.plan is not None), None)
        if plan is not None:
            yield from wrap(f"{plan.planner}: {plan.claim}", 79, initial_indent="  ", subsequent_indent="  ")
        unusual = [call.status for call in self.calls if call.status not in ("done", "no gradient")]
        for status in dict.fromkeys(unusual):
            yield f"  {count_text(unusual.count(status))} of {count_text(len(self.calls))}: {status}"[:79]


class Profile(Displayable, Serializable):
    """What happened in a `with remat.profile() as run:` block; `calls` has one record per remat call.

    `passes` lists the order in which segments were run forward, recomputed and pulled back.
    """

    kind: ClassVar[str] = "profile"

    def __init__(self, calls: list[CallRecord] | None = None, *, memory: bool = False) -> None:
        self.calls: list[CallRecord] = [] if calls is None else calls
        self.passes: list[SegmentPass] = []
        self.kept: list[KeptBlock] = []  # blocks that are no segments
        self.models: list[ModelRecord] = []  # those under a budget, with the plans by which they ran
        self.memory = memory
        self.meters = ActiveMeters()
        self.open = True
        self._traced: dict[tuple[str, SourceLocation], int] = {}
        self._watching = ExitStack()
        self._waiting: set[str] = set()  # names of segments that have not been pulled back yet

    def take_name(self, name: str) -> str:
        """A name for a segment, with a number added if another segment of that name waits to be pulled back."""
        taken, number = name, 1
        while taken in self._waiting:
            number += 1
            taken = f"{name} ({number})"
        self._waiting.add(taken)
        return taken

    def free_name(self, name: str) -> None:
        """Allow another segment to take a name."""
        self._waiting.discard(name)

    def watching(self) -> AbstractContextManager[Any]:
        """A context at whose end all observers of this profile stop."""
        return self._watching

    def watch_by(self, observe: "Callable[[Profile], AbstractContextManager[None]]") -> None:
        """Let a framework observe the program for this profile, until it closes."""
        self._watching.enter_context(observe(self))

    def __len__(self) -> int:
        return len(self.calls)

    def places(self) -> "list[CallSiteStats]":
        """The statistics of each call site, in the order of the first calls."""
        by_site: dict[tuple[str, SourceLocation], list[CallRecord]] = {}
        for call in tuple(self.calls):  # a copy, as other threads may append
            by_site.setdefault((call.what, call.site), []).append(call)
        return [CallSiteStats(what, site, tuple(calls)) for (what, site), calls in by_site.items()]

    def add_kept(self, contents: SegmentContents, time: float) -> KeptBlock | None:
        """Store what a block that is not a segment keeps since `time`; None if too many are stored."""
        if len(self.kept) >= MOST_PASSES:
            return None
        self.kept.append(KeptBlock(contents, time))
        return self.kept[-1]

    def trace_more(self, what: str, site: SourceLocation) -> bool:
        """Count one more call from a call site; True if its events are to be stored."""
        count = self._traced[what, site] = self._traced.get((what, site), 0) + 1
        return count <= MOST_TRACES

    def __str__(self) -> str:
        if not self.calls:
            kept = "; what blocks keep for their backward is in its report" if self.kept else ""
            return f"no remat calls were made{kept}"
        head = f"{'call':<29}{'calls':>6}{'steps run':>11}{'planned':>11}{'peak':>12}{'time':>10}"
        rows = [head, "-" * len(head)]
        for call_site in self.places():
            rows += call_site.lines()
        if self.passes:
            rows += ["", "passes over segments, in order", *(f"  {each}"[:79] for each in self.passes[:_SHOWN])]
            left = len(self.passes) - _SHOWN
            rows += [f"  and {count_text(left)} more"] if left > 0 else []
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain data; plans are saved without their ops, which are in the traces."""
        return {
            "memory": self.memory,
            "calls": [call.to_dict() for call in self.calls],
            "passes": [each.to_dict() for each in self.passes],
            "kept": [block.to_dict() for block in self.kept],
            "models": [model.to_dict() for model in self.models],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Profile":
        """The profile from plain data."""
        loaded = cls([CallRecord.from_dict(entry) for entry in data["calls"]], memory=bool(data["memory"]))
        loaded.passes = [SegmentPass.from_dict(entry) for entry in data.get("passes", ())]
        loaded.kept = [KeptBlock.from_dict(each) for each in data.get("kept", ())]
        loaded.models = [ModelRecord.from_dict(each) for each in data.get("models", ())]
        return loaded


# Library → the framework package that observes programs that use it. It is imported by name, since this package does
# not depend on frameworks. The program may not call remat yet: a profile can show which block to drop.
_WATCHED = {"torch": "remat.frameworks.torch"}
# The observers that imported frameworks have registered.
_observers: list[Callable[[Profile], AbstractContextManager[None]]] = []


def register_observer(observe: Callable[[Profile], AbstractContextManager[None]]) -> None:
    """Add an observer to every profile that is open or opened later."""
    _observers.append(observe)
    for each in _active_profiles():  # the first remat call, which imports the framework, may be inside a profile
        each.watch_by(observe)


@contextmanager
def profile(*, memory: bool = False) -> Iterator[Profile]:
    """Record every remat call in the block: steps, bytes and seconds, planned and measured, per call site.

    Profiles nest, and threads may call at the same time. If an error or Ctrl-C ends the block, the records remain.

    Args:
        memory: Whether to also measure the framework's allocated bytes around every op, which is slow for NumPy.

    Yields:
        The profile, which can be printed, read, reported and saved.

    Example:
        >>> import autograd.numpy as np, remat
        >>> from autograd import grad
        >>> with remat.profile() as run:
        ...     slope = grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=10, slots=3)[0])(0.5)
        >>> run.calls[0].trace.forward_steps, run.calls[0].plan.forward_steps
        (25, 25)
    """
    for library, framework in _WATCHED.items():
        if library in sys.modules:
            import_module(framework)
    opened = Profile(memory=memory)
    _active.set((*_active.get(), opened))
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        with _lock:
            _active_all_threads.append(opened)
    try:
        with opened.watching():
            for observe in _observers:
                opened.watch_by(observe)
            yield opened
    finally:
        opened.open = False
        opened.meters.close()
        if in_main_thread:
            with _lock:
                _active_all_threads.remove(opened)
        # `reset(token)` would not do: blocks may end in any order, and in another context.
        _active.set(tuple(each for each in _active.get() if each is not opened))


def _active_profiles() -> tuple[Profile, ...]:
    """The profiles that record calls of the current thread and context."""
    active = _active.get()
    if active:  # a block may have ended in another context
        active = tuple(each for each in active if each.open)
    if _active_all_threads and threading.current_thread() is not threading.main_thread():
        with _lock:
            active = (*active, *(each for each in _active_all_threads if each not in active))
    return active


def is_in_loop() -> bool:
    """Whether the calling code runs inside a profiled loop, whose plan counts what its steps keep."""
    return _in_loop.get()


def is_profiling() -> bool:
    """Whether a profile records this thread and context."""
    return bool(_active_profiles())


@contextmanager
def unprofiled() -> Iterator[None]:
    """A context whose remat calls are not recorded, for tracing a function again just to inspect it."""
    active = _active.get()
    _active.set(())
    try:
        yield
    finally:
        _active.set(active)


def recorded_call(what: str, step: Callable[..., Any] | None) -> AbstractContextManager[CallRecord | None]:
    """A context for one remat call; it yields the record that all active profiles share, or None without a profile."""
    active = _active_profiles()
    return _recorded_call(active, what, step) if active else nullcontext()


@contextmanager
def _recorded_call(active: tuple[Profile, ...], what: str, step: Callable[..., Any] | None) -> Iterator[CallRecord]:
    site = user_frame()
    with _lock:
        traced = [each.trace_more(what, site) for each in active]
        meters = next((each.meters for each in active if each.memory), None)
        call = CallRecord(what, site, definition_of(step), traced=any(traced), meters=meters)
        for each in active:
            each.calls.append(call)
    began = perf_counter()
    in_loop = _in_loop.get()
    _in_loop.set(in_loop or what in LOOPS)
    try:
        yield call
    except StopRecomputation:  # not an error: the segment around this call has been recomputed far enough
        raise
    except BaseException as error:
        call.stopped = type(error).__name__
        raise
    finally:
        _in_loop.set(in_loop)
        call.seconds = perf_counter() - began


def note_model(model: ModelRecord) -> None:
    """Tell all active profiles that a model runs by a plan."""
    active = _active_profiles()
    with _lock:
        for each in active:
            if all(known.plan is not model.plan for known in each.models):
                each.models.append(model)


def name_segment(name: str) -> str:
    """The name of a starting segment; in a profile, it differs from those that wait to be pulled back."""
    active = _active_profiles()
    if not active:
        return name
    with _lock:
        return active[0].take_name(name)


def segment_pass(name: str, what: str, depth: int, *, since: float | None = None) -> AbstractContextManager[None]:
    """A context for one pass over a segment, recorded in all active profiles; `since` is when it began, if earlier."""
    active = _active_profiles()
    return _recorded_pass(active, name, what, depth, since) if active else nullcontext()


@contextmanager
def _recorded_pass(
    active: tuple[Profile, ...], name: str, what: str, depth: int, since: float | None
) -> Iterator[None]:
    # Added before the block runs, so that passes are in the order in which they began; the time is added afterwards.
    began = perf_counter() if since is None else since
    entry = SegmentPass(name, what, depth, what == "forward" and is_recomputing(), start=began)
    with _lock:
        positions = [(each, len(each.passes)) for each in active if len(each.passes) < MOST_PASSES]
        for each, _ in positions:
            each.passes.append(entry)
        if what == "pullback":
            active[0].free_name(name)
    try:
        yield
    finally:
        entry = replace(entry, seconds=max(0.0, perf_counter() - began))
        for each, position in positions:
            each.passes[position] = entry
