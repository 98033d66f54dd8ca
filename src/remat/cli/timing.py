"""Times that can be compared: each is the median of several runs, and the runs of the compared calls alternate.

A machine that is busy for a while slows down all calls alike, and a single slow run does not move a median.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from remat.units import seconds_text

__all__ = ["Times", "interleaved"]


@dataclass(frozen=True)
class Times:
    """The seconds of several runs of one call."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return median(self.seconds)

    def __str__(self) -> str:
        if len(self.seconds) == 1:
            return seconds_text(self.median)
        low, high = seconds_text(min(self.seconds)), seconds_text(max(self.seconds))
        return f"{seconds_text(self.median)} (median of {len(self.seconds)}, {low} to {high})"


def interleaved(
    calls: Sequence[Callable[[], object]], rounds: int, done: Callable[[], None] = lambda: None
) -> list[Times]:
    """The times of each call, from `rounds` rounds that run all calls in turn; `done` is called after each run."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, seconds, strict=True):
            began = perf_counter()
            call()
            times.append(perf_counter() - began)
            done()
    return [Times(tuple(times)) for times in seconds]
