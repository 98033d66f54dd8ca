"""The cost of one step: it runs once to warm up, once with the memory meter on, then a few times to be timed.

Times are medians. A range of a few steps is measured too: if its steps share residuals (captured weights), its tape is
smaller than the tapes of the single steps together, and the fixed time per range is spread over its steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from remat.execute.backend_protocol import Backend
from remat.execute.gradients import Gradients
from remat.execute.state_replay import StateReplay
from remat.memory_meter import Meter
from remat.problem import Loop
from remat.progress import report_progress

__all__ = ["MeasurableBackend", "MeasurementSetup", "StepCost", "measure_step"]

QUICK = 0.02  # seconds: a step that takes longer is timed once
TIMES = 3  # runs of a quick step
COPIES, SMALL = (
    8,
    65536,
)  # a state of fewer bytes is copied several times, as the first copy may fill an allocator's cache
# Times that are assumed if none are measured: forward, record and backward of a step, and per range.
DEFAULT_TIMES = (0.8, 1.0, 2.0, 0.5)
LONGEST = 4  # the most steps in the range that is compared with single steps


class MeasurableBackend(Backend, Protocol):
    """A backend that can tell the bytes of its values."""

    def size(self, value: Any) -> int:
        """Bytes of a state or a tape."""
        ...


@dataclass(frozen=True)
class StepCost:
    """The measured cost of a step: a loop of unknown length for the planners, and the bytes that they do not count.

    `loop.tape` is what one more step adds to the tape of a range. The tape of a range has `bytes_per_range` in
    addition, for residuals that its steps share. Pulling back a range allocates `pullback_workspace` bytes per step.
    """

    loop: Loop
    workspace: int  # bytes that a step allocates while it runs, besides two states or cotangents
    bytes_per_range: int = 0
    pullback_workspace: int = 0
    truncated: bool = False  # whether there was too little memory to measure a range of several steps
    bookkeeping: int = 320 * 1024  # bytes of fingerprints, rng states and Python objects in a run

    def worth_remeasuring(self, room: int) -> bool:
        """Whether too little memory prevented measuring a longer range, and `room` bytes are enough for it."""
        return (
            self.truncated
            and _tapes_in(room, self.workspace, self.loop.state, self.loop.tape + self.bytes_per_range) > 1
        )

    @property
    def as_single_steps(self) -> Loop:
        """The loop with the tape of a one-step range, an upper bound on the bytes per step of any range."""
        return Loop(**{**self.loop.to_dict(), "tape": self.loop.tape + self.bytes_per_range + self.pullback_workspace})


@dataclass(frozen=True)
class MeasurementSetup:
    """What a measurement runs on: a backend, a state to start from, and a meter of the memory that they use.

    `ones_like(state, gradients)` returns gradients for a pullback from that state, with a cotangent of ones; it reuses
    the accumulated sums of `gradients`, unless that is None. `finish` waits until the device has finished its work.
    """

    backend: MeasurableBackend
    meter: Meter
    state: Any
    ones_like: Callable[[Any, Gradients | None], Gradients]
    finish: Callable[[], Any] = lambda: None
    timed: bool = True  # False: use default times, because several processes must arrive at the same plan
    replay: StateReplay | None = None  # restores what steps change besides their carry
    _before: Any = field(default=None, repr=False)  # the snapshot of `replay` from which each run starts
    _gradients: list[Gradients] = field(default_factory=list, repr=False)  # those of the last pullback, or empty

    def new_gradients(self, state: Any) -> Gradients:
        """Gradients for a pullback from this state."""
        return self.ones_like(state, self._gradients.pop() if self._gradients else None)

    def pull_back(self, tapes: list[Any], gradients: list[Gradients]) -> None:
        """Pull back through a tape, and save the sums for the next pullback, as a real reverse sweep does."""
        self._gradients.append(replace(self.backend.pull_back(tapes.pop(), gradients.pop()), carry=None))

    def rewind(self) -> None:
        """Restore everything besides the state to what it was there: counters, generators, logs."""
        if self.replay is not None:
            self.replay.rewind(self._before)

    def again(self) -> Any:
        """A copy of the state to run steps from, with everything else restored too."""
        self.rewind()
        return self.backend.copy(self.state)

    def at(self, step: int) -> "MeasurementSetup":
        """The setup at the state before a later step, after running that step once to warm up."""
        backend, state = self.backend, self.state
        state = backend.copy(backend.advance(backend.copy(state), 0, step)) if step else backend.copy(state)
        setup = replace(self, state=state, _before=None if self.replay is None else self.replay.snapshot())
        _range_times(setup, step, step + 1)  # allocates the gradient sums, which must not count as workspace
        return setup


def measure_step(setup: MeasurementSetup, steps: int, room: int) -> StepCost:
    """The cost of a step, from runs of the first `steps` steps of the loop; the setup's state is not changed.

    At most `room` bytes are used, if that is enough for one step.
    """
    report_progress(0, None)  # measuring takes only a few runs of a step, so there is no more to report
    # Skip the first steps: their carry may still contain Python numbers, and some backends probe them.
    at = min(3, steps - 1)
    setup = setup.at(at)
    with setup.meter.counting():
        sizes = _Sizes.of(setup, at)
    longer = min(LONGEST, steps - at, _tapes_in(room, sizes.workspace, sizes.state, sizes.tape))
    tape, per_range, pullback_workspace, workspace = sizes.tape, 0.0, 0, sizes.workspace
    if longer > 1:
        # Use the slope between ranges of 2 and of `longer` steps, since the second step adds more than each further
        # one: adding the gradients of two steps takes a buffer, which a third step reuses.
        short = min(2, longer - 1)
        with setup.meter.counting():
            one, two, several = (_range_sizes(setup, at, at + count) for count in (1, short, longer))
        slopes = [max(0, -((a - b) // (longer - short))) for a, b in zip(two, several, strict=True)]
        tape, pullback_workspace = max(slopes[:2]), slopes[2]
        workspace += max(0, two[2] - one[2] - (short - 1) * pullback_workspace)
    forward = _advance_seconds(setup, at)
    record, backward = _range_times(setup, at, at + 1)
    if not setup.timed:
        forward, record, backward, per_range = DEFAULT_TIMES
    elif forward + record + backward < QUICK:
        forward = median(_advance_seconds(setup, at) for _ in range(TIMES))
        times = [_range_times(setup, at, at + 1) for _ in range(TIMES)]
        record, backward = (median(seconds) for seconds in zip(*times, strict=True))
        if longer > 1:
            whole = median(sum(_range_times(setup, at, at + longer)) for _ in range(TIMES))
            single = record + backward
            # Solve whole = per_range + longer * step and single = per_range + step for per_range. Noise may make it
            # negative or more than `single`; less than a tenth of `single` is treated as noise.
            per_range = min(0.9 * single, max(0.0, (longer * single - whole) / (longer - 1)))
            per_range = 0.0 if per_range < 0.1 * (record + backward) else per_range
    share = 1 - per_range / (record + backward) if record + backward else 1.0
    tape = min(tape, sizes.tape)
    loop = Loop(None, max(1, sizes.state), tape, forward, share * record, share * backward, per_range=per_range)
    truncated = longer < min(LONGEST, steps - at)
    return StepCost(loop, workspace, sizes.tape - tape, pullback_workspace, truncated)


@dataclass(frozen=True)
class _Sizes:
    state: int
    tape: int
    workspace: int

    @classmethod
    def of(cls, setup: MeasurementSetup, at: int) -> "_Sizes":
        """Bytes of a state and of a tape, and the workspace: the most that any op allocates in addition.

        The planners count two states while a step runs and two cotangents while it is pulled back, so the workspace
        excludes these. Each size is the larger of what the backend reports and what the meter shows, because an
        allocator may round up.
        """
        backend, meter, state = setup.backend, setup.meter, setup.state
        before = meter.now()
        # Values are popped from lists directly into a call, so that the backend can free them early.
        copies = [backend.copy(state) for _ in range(COPIES if backend.size(state) < SMALL else 1)]
        size = max(backend.size(copies[0]), (meter.now() - before) // len(copies))
        copies.clear()
        copies.append(setup.again())
        meter.reset_peak()
        before = meter.now() - size
        after = backend.advance(copies.pop(), at, at + 1)
        running = meter.peak() - before - 2 * size
        gradients = [setup.new_gradients(after)]
        del after
        copies.append(setup.again())
        meter.reset_peak()
        before = meter.now() - size
        after, tape = backend.record(copies.pop(), at, at + 1)
        peak = meter.peak() - before
        tape_bytes = backend.size(tape)
        del after
        tape_bytes = max(tape_bytes, meter.now() - before)
        recording = peak - tape_bytes - 2 * size
        tapes = [tape]
        del tape
        meter.reset_peak()
        setup.pull_back(tapes, gradients)
        pulling = meter.peak() - before - tape_bytes - size  # `before` already contains the other cotangent
        return cls(size, tape_bytes, max(0, running, recording, pulling))


def _tapes_in(room: int, workspace: int, state: int, tape: int) -> int:
    """The number of tapes that fit into `room` bytes next to the workspace and the states that measuring needs."""
    return (room - workspace - 6 * state) // max(1, tape)


def _range_sizes(setup: MeasurementSetup, start: int, stop: int) -> tuple[int, int, int]:
    """Bytes of a range's tape, by the backend and by the meter, and bytes allocated while it is pulled back."""
    backend, meter = setup.backend, setup.meter
    states = [setup.again()]
    before = meter.now()
    after, tape = backend.record(states.pop(), start, stop)
    gradients, tapes = [setup.new_gradients(after)], [tape]
    del after, tape
    tape_bytes, recorded = backend.size(tapes[0]), meter.now()
    meter.reset_peak()
    setup.pull_back(tapes, gradients)
    return tape_bytes, recorded - before, meter.peak() - recorded


def _seconds(setup: MeasurementSetup, call: Callable[[], Any]) -> float:
    """Seconds of a call, including all work of the device."""
    setup.finish()
    began = perf_counter()
    call()
    setup.finish()
    return perf_counter() - began


def _advance_seconds(setup: MeasurementSetup, at: int) -> float:
    """Seconds of a step without a tape, including a copy of the state."""
    setup.rewind()
    return _seconds(setup, lambda: setup.backend.advance(setup.backend.copy(setup.state), at, at + 1))


def _range_times(setup: MeasurementSetup, start: int, stop: int) -> tuple[float, float]:
    """Seconds to record a range, and to pull it back."""
    states, results = [setup.again()], list[Any]()
    record_seconds = _seconds(setup, lambda: results.extend(setup.backend.record(states.pop(), start, stop)))
    tapes = [results.pop()]
    gradients = [setup.new_gradients(results.pop())]
    return record_seconds, _seconds(setup, lambda: setup.pull_back(tapes, gradients))
