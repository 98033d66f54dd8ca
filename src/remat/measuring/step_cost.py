"""One step, measured: once to warm up, once with the meter on, then a few times with the clock on; medians count."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from remat.memory_meter import Meter
from remat.problem import Loop
from remat.progress import report_progress

__all__ = ["MeasurableBackend", "MeasurementSetup", "StepCost", "measure_step"]

QUICK = 0.02  # seconds: a step that takes longer is timed once
TIMES = 3  # runs of a quick step
COPIES, SMALL = 8, 65536  # of a state that is small, several copies are weighed: the first may fill a cache
DEFAULT_TIMES = (
    0.8,
    1.0,
    2.0,
    0.5,
)  # times of a step: forward, recorded, pulled back, and what a range takes beside its steps
LONGEST = 4  # steps of the range that is compared with single steps


class MeasurableBackend(Protocol):
    """The verbs of the interpreter that measuring needs."""

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """State `stop` from state `start`."""
        ...

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """State `stop` and a tape."""
        ...

    def pull_back(self, tape: Any, cotangent: Any) -> Any:
        """The cotangent before the tape."""
        ...

    def copy(self, state: Any) -> Any:
        """A private copy of a state."""
        ...

    def size(self, value: Any) -> int:
        """Bytes of a state or a tape."""
        ...


@dataclass(frozen=True)
class StepCost:
    """A loop of unknown length with measured sizes and times, and the bytes that a step allocates while it runs.

    The loop's tape is what one more step adds to a recorded range. A range of any length takes `bytes_per_range` more:
    what its steps share. While a range is pulled back, `pullback_workspace` bytes are allocated for each of its steps.
    """

    loop: Loop
    workspace: int
    bytes_per_range: int = 0
    pullback_workspace: int = 0
    truncated: bool = False  # whether there was no room to measure a longer range
    bookkeeping: int = (
        320 * 1024
    )  # bytes for bookkeeping that a meter sees: summaries, marks of random generators, Python's own

    def worth_remeasuring(self, room: int) -> bool:
        """Whether so many bytes are enough to measure the longer range for which there was no room."""
        return (
            self.truncated
            and _tapes_in(room, self.workspace, self.loop.state, self.loop.tape + self.bytes_per_range) > 1
        )

    @property
    def as_single_steps(self) -> Loop:
        """The loop with the tape of a range of one step: too much for longer ranges, and never too little."""
        return Loop(**{**self.loop.to_dict(), "tape": self.loop.tape + self.bytes_per_range + self.pullback_workspace})


@dataclass(frozen=True)
class MeasurementSetup:
    """What is measured: verbs, a state to begin with, how to make a cotangent for a state, and the meter of it all.

    `finish` waits until all that was asked of the device is done.
    """

    backend: MeasurableBackend
    meter: Meter
    state: Any
    ones_like: Callable[[Any], Any]
    finish: Callable[[], Any] = lambda: None
    timed: bool = True  # if not, times are taken to be usual ones: where others must come to the same plan

    def at(self, step: int) -> "MeasurementSetup":
        """The same, at the state before a later step, after all has been run once."""
        backend, state = self.backend, self.state
        state = backend.copy(backend.advance(backend.copy(state), 0, step)) if step else backend.copy(state)
        later = replace(self, state=state)
        _range_times(later, step, step + 1)  # from now on the sums of gradients exist
        return later


def measure_step(
    subject: MeasurementSetup, steps: int, room: int, *, weighed: MeasurementSetup | None = None
) -> StepCost:
    """What a step of the loop costs, from runs of its first `steps` steps; the state that is given is not changed.

    No more than `room` bytes are used, if that is enough for one step. Bytes are measured on another subject if one is
    given: one without numbers, which needs no memory.
    """
    report_progress(
        0, None
    )  # whoever listens hears that something goes on, and nothing more: it is a few runs of a step
    at = min(3, steps - 1)  # not the first step, which may start from numbers that become arrays, or be run with care
    subject = subject.at(at)
    weighed = subject if weighed is None else weighed.at(at)
    with weighed.meter.counting():
        sizes = _Sizes.of(weighed, at)
    backend, state = subject.backend, subject.state
    forward = _seconds(subject, lambda: backend.advance(backend.copy(state), at, at + 1))
    record, backward = _range_times(subject, at, at + 1)
    longer = min(LONGEST, steps - at, _tapes_in(room, sizes.workspace, sizes.state, sizes.tape))
    tape, per_range, pullback_workspace, aside = sizes.tape, 0.0, 0, sizes.workspace
    if longer > 1:
        # What a second step adds is not what every further one adds: sums of gradients need room as soon as there are
        # two of them, and no more room for more of them.
        short = min(2, longer - 1)
        with weighed.meter.counting():
            one, some, several = (_range_sizes(weighed, at, at + count) for count in (1, short, longer))
        slopes = [max(0, -((a - b) // (longer - short))) for a, b in zip(some, several, strict=True)]
        tape, pullback_workspace = max(slopes[:2]), slopes[2]
        aside += max(0, some[2] - one[2] - (short - 1) * pullback_workspace)
    if not subject.timed:
        forward, record, backward, per_range = DEFAULT_TIMES
    elif forward + record + backward < QUICK:
        forward = median(
            _seconds(subject, lambda: backend.advance(backend.copy(state), at, at + 1)) for _ in range(TIMES)
        )
        times = [_range_times(subject, at, at + 1) for _ in range(TIMES)]
        record, backward = (median(part) for part in zip(*times, strict=True))
        if longer > 1:
            whole = median(sum(_range_times(subject, at, at + longer)) for _ in range(TIMES))
            single = record + backward  # in a noisy run less than what the range seems to take by itself
            per_range = min(0.9 * single, max(0.0, (longer * single - whole) / (longer - 1)))
            per_range = 0.0 if per_range < 0.1 * (record + backward) else per_range  # within the noise
    share = 1 - per_range / (record + backward) if record + backward else 1.0
    tape = min(tape, sizes.tape)
    loop = Loop(None, max(1, sizes.state), tape, forward, share * record, share * backward, per_range=per_range)
    limited = longer < min(LONGEST, steps - at)
    return StepCost(loop, aside, sizes.tape - tape, pullback_workspace, limited)


@dataclass(frozen=True)
class _Sizes:
    state: int
    tape: int
    workspace: int

    @classmethod
    def of(cls, subject: MeasurementSetup, at: int) -> "_Sizes":
        """Bytes of a state and of a tape, and the most that is live beside them and the working set of the planners.

        The working set is two states while a step runs, and two cotangents while it is pulled back.
        """
        backend, meter, state = subject.backend, subject.meter, subject.state
        before = meter.now()
        kept = [backend.copy(state) for _ in range(COPIES if backend.size(state) < SMALL else 1)]
        size = max(backend.size(kept[0]), (meter.now() - before) // len(kept))
        del kept[1:]
        meter.reset_peak()
        before = meter.now() - size
        after = backend.advance(kept.pop(), at, at + 1)
        running = meter.peak() - before - 2 * size
        cotangent = [subject.ones_like(after)]
        del after
        kept.append(backend.copy(state))
        meter.reset_peak()
        before = meter.now() - size
        after, tape = backend.record(kept.pop(), at, at + 1)
        peak = meter.peak() - before
        held = backend.size(tape)
        del after
        held = max(held, meter.now() - before)
        recording = peak - held - 2 * size
        tapes = [tape]
        del tape
        meter.reset_peak()
        backend.pull_back(tapes.pop(), cotangent.pop())
        pulling = meter.peak() - before - held - size  # one cotangent was there before
        return cls(size, held, max(0, running, recording, pulling))


def _tapes_in(room: int, aside: int, state: int, tape: int) -> int:
    """How many tapes there is room for, beside what measuring needs."""
    return (room - aside - 6 * state) // max(1, tape)


def _range_sizes(subject: MeasurementSetup, start: int, stop: int) -> tuple[int, int, int]:
    """Bytes of the tape of a range: by weighing it, and by the meter; and what is allocated while it is pulled back."""
    backend, meter = subject.backend, subject.meter
    given = [backend.copy(subject.state)]
    before = meter.now()
    after, tape = backend.record(given.pop(), start, stop)
    cotangent, tapes = [subject.ones_like(after)], [tape]
    del after, tape
    weighed, held = backend.size(tapes[0]), meter.now()
    meter.reset_peak()
    backend.pull_back(tapes.pop(), cotangent.pop())
    return weighed, held - before, meter.peak() - held


def _seconds(subject: MeasurementSetup, call: Callable[[], Any]) -> float:
    subject.finish()
    began = perf_counter()
    call()
    subject.finish()
    return perf_counter() - began


def _range_times(subject: MeasurementSetup, start: int, stop: int) -> tuple[float, float]:
    """Seconds to record a range, and to pull it back."""
    given, made = [subject.backend.copy(subject.state)], list[Any]()
    recorded = _seconds(subject, lambda: made.extend(subject.backend.record(given.pop(), start, stop)))
    tapes = [made.pop()]
    cotangent = [subject.ones_like(made.pop())]
    return recorded, _seconds(subject, lambda: subject.backend.pull_back(tapes.pop(), cotangent.pop()))
