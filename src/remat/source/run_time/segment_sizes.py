"""The number of turns per segment, for loops whose turns run one by one: by slots, or within a budget in bytes.

In: the bytes of a state and of the tape of one turn, the number of turns if it is known, and the budget. Out: the turns
of a segment. n turns in segments of m keep ⌈n/m⌉ states, and the tapes of m turns while one segment is recomputed.
Every turn is run twice, whatever m is, so the m with the lowest peak is taken, near √(n · state / tape). If n is not
known, half of the budget is for the tapes, and the loop raises an error when its states outgrow the rest. What it can
miss: turns whose tape is larger than that of the first turn, which is measured.
"""

from dataclasses import dataclass
from math import isqrt

from remat.errors import InfeasibleError
from remat.units import bytes_text

__all__ = ["SEGMENT", "SegmentSizes"]

SEGMENT = 16  # turns of the first segments of a loop of unknown length


@dataclass(frozen=True)
class SegmentSizes:
    """The sizes of segments: by `slots`, or within a `budget`, given the bytes of a state and of a turn's tape."""

    slots: int | None = None
    budget: int | None = None
    state: int = 0
    tape: int = 0

    def size(self, count: int | None, number: int = 0) -> int:
        """The turns of segment `number`; an InfeasibleError if the loop does not fit into the budget."""
        if self.budget is not None:
            return self._within(self.budget, count, number)
        if count is None:
            return max(SEGMENT, number)
        return -(-count // (self.slots or max(1, isqrt(count))))

    def peak(self, count: int, size: int) -> int:
        """The bytes of all kept states, and of the tapes of one segment."""
        return -(-count // size) * self.state + min(size, count) * self.tape

    def _within(self, budget: int, count: int | None, number: int) -> int:
        if count is None:
            size = max(1, budget // (2 * max(1, self.tape)))
            self._check(budget, (number + 1) * self.state + size * self.tape, f"after {number * size} turns")
            return size
        near = isqrt(count * self.state // max(1, self.tape))
        sizes = {min(max(1, each), count) for each in (near, near + 1, count)} if count else {1}
        size = min(sizes, key=lambda each: (self.peak(count, each), -each))
        self._check(budget, self.peak(count, size), f"for {count} turns")
        return size

    def _check(self, budget: int, peak: int, of_what: str) -> None:
        if peak > budget:
            raise InfeasibleError(
                f"the budget of {bytes_text(budget)} is too small for this loop, whose turns run one by one in "
                f"segments that are run twice: {of_what} of {bytes_text(self.state)} a state and "
                f"{bytes_text(self.tape)} a tape, the smallest that works is {bytes_text(peak, up=True)}, {peak} "
                "bytes. Give at least that, or write the loop without branches on data, so that it is compiled as one",
                peak,
                "bytes",
            )
