"""One step, measured: once to warm up, once with the meter on, then a few times with the clock on; medians count."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from remat.execute.backend_protocol import Backend
from remat.execute.gradients import Gradients
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


class MeasurableBackend(Backend, Protocol):
    """A backend that says how large its values are."""

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
    """What is measured: a backend, a state to start from, and the meter of the memory that they use.

    `ones_like(state, gradients)` makes the gradients that a pullback from that state starts with; it goes on with the
    sums of `gradients`, if there are any yet. `finish` waits until the device has done all its work.
    """

    backend: MeasurableBackend
    meter: Meter
    state: Any
    ones_like: Callable[[Any, Gradients | None], Gradients]
    finish: Callable[[], Any] = lambda: None
    timed: bool = True  # False: default times, where several processes must come to the same plan
    _gradients: list[Gradients] = field(default_factory=list, repr=False)  # of the last pullback

    def new_gradients(self, state: Any) -> Gradients:
        """Gradients for a pullback that starts at this state."""
        return self.ones_like(state, self._gradients.pop() if self._gradients else None)

    def pull_back(self, tape: Any, gradients: list[Gradients]) -> None:
        """Pull back through a tape, and hold the sums for the next pullback, as a real reverse sweep does."""
        self._gradients.append(replace(self.backend.pull_back(tape, gradients.pop()), carry=None))

    def at(self, step: int) -> "MeasurementSetup":
        """The same, at the state before a later step, after all has been run once."""
        backend, state = self.backend, self.state
        state = backend.copy(backend.advance(backend.copy(state), 0, step)) if step else backend.copy(state)
        later = replace(self, state=state)
        _range_times(later, step, step + 1)  # from now on the sums of gradients exist
        return later


def measure_step(setup: MeasurementSetup, steps: int, room: int) -> StepCost:
    """What a step of the loop costs, from runs of its first `steps` steps; the setup's state is not changed.

    No more than `room` bytes are used, if that is enough for one step.
    """
    report_progress(0, None)  # work has begun; it is a few runs of a step, so there is no more to report
    at = min(3, steps - 1)  # not the first step, which may start from numbers that become arrays, or be run with care
    setup = setup.at(at)
    with setup.meter.counting():
        sizes = _Sizes.of(setup, at)
    backend, state = setup.backend, setup.state
    forward = _seconds(setup, lambda: backend.advance(backend.copy(state), at, at + 1))
    record, backward = _range_times(setup, at, at + 1)
    longer = min(LONGEST, steps - at, _tapes_in(room, sizes.workspace, sizes.state, sizes.tape))
    tape, per_range, pullback_workspace, aside = sizes.tape, 0.0, 0, sizes.workspace
    if longer > 1:
        # What a second step adds is not what every further one adds: sums of gradients need room as soon as there are
        # two of them, and no more room for more of them.
        short = min(2, longer - 1)
        with setup.meter.counting():
            one, some, several = (_range_sizes(setup, at, at + count) for count in (1, short, longer))
        slopes = [max(0, -((a - b) // (longer - short))) for a, b in zip(some, several, strict=True)]
        tape, pullback_workspace = max(slopes[:2]), slopes[2]
        aside += max(0, some[2] - one[2] - (short - 1) * pullback_workspace)
    if not setup.timed:
        forward, record, backward, per_range = DEFAULT_TIMES
    elif forward + record + backward < QUICK:
        forward = median(
            _seconds(setup, lambda: backend.advance(backend.copy(state), at, at + 1)) for _ in range(TIMES)
        )
        times = [_range_times(setup, at, at + 1) for _ in range(TIMES)]
        record, backward = (median(part) for part in zip(*times, strict=True))
        if longer > 1:
            whole = median(sum(_range_times(setup, at, at + longer)) for _ in range(TIMES))
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
    def of(cls, setup: MeasurementSetup, at: int) -> "_Sizes":
        """Bytes of a state and of a tape, and the most that is live beside them and the working set of the planners.

        The working set is two states while a step runs, and two cotangents while it is pulled back.
        """
        backend, meter, state = setup.backend, setup.meter, setup.state
        before = meter.now()
        kept = [backend.copy(state) for _ in range(COPIES if backend.size(state) < SMALL else 1)]
        size = max(backend.size(kept[0]), (meter.now() - before) // len(kept))
        del kept[1:]
        meter.reset_peak()
        before = meter.now() - size
        after = backend.advance(kept.pop(), at, at + 1)
        running = meter.peak() - before - 2 * size
        gradients = [setup.new_gradients(after)]
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
        setup.pull_back(tapes.pop(), gradients)
        pulling = meter.peak() - before - held - size  # one cotangent was there before
        return cls(size, held, max(0, running, recording, pulling))


def _tapes_in(room: int, aside: int, state: int, tape: int) -> int:
    """How many tapes there is room for, beside what measuring needs."""
    return (room - aside - 6 * state) // max(1, tape)


def _range_sizes(setup: MeasurementSetup, start: int, stop: int) -> tuple[int, int, int]:
    """Bytes of the tape of a range: by weighing it, and by the meter; and what is allocated while it is pulled back."""
    backend, meter = setup.backend, setup.meter
    given = [backend.copy(setup.state)]
    before = meter.now()
    after, tape = backend.record(given.pop(), start, stop)
    gradients, tapes = [setup.new_gradients(after)], [tape]
    del after, tape
    weighed, held = backend.size(tapes[0]), meter.now()
    meter.reset_peak()
    setup.pull_back(tapes.pop(), gradients)
    return weighed, held - before, meter.peak() - held


def _seconds(setup: MeasurementSetup, call: Callable[[], Any]) -> float:
    setup.finish()
    began = perf_counter()
    call()
    setup.finish()
    return perf_counter() - began


def _range_times(setup: MeasurementSetup, start: int, stop: int) -> tuple[float, float]:
    """Seconds to record a range, and to pull it back."""
    given, made = [setup.backend.copy(setup.state)], list[Any]()
    recorded = _seconds(setup, lambda: made.extend(setup.backend.record(given.pop(), start, stop)))
    tapes = [made.pop()]
    gradients = [setup.new_gradients(made.pop())]
    return recorded, _seconds(setup, lambda: setup.pull_back(tapes.pop(), gradients))
