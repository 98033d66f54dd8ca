"""The guard: a step that gives something else when it runs again would make a wrong gradient; here it is found out.

The first sweep notes a summary of the states it passes (some thousand at the most, evenly spread); whoever computes one
of these states again is compared with it.
"""

from array import array
from typing import Any, Literal, NoReturn, get_args

from remat.errors import DeterminismError, ProblemError
from remat.execute.backend_protocol import FingerprintedBackend

__all__ = ["CHECKS", "Check", "DeterminismCheck", "parse_check"]

Check = Literal["first", "always", "never"]
CHECKS = get_args(Check)
MOST_NUMBERS = 1024  # of all summaries of a loop: 8 KiB


def parse_check(check: Any) -> str:
    """`check`, if it is a word that says when to compare."""
    if check not in CHECKS:
        raise ProblemError(f'check must be "first", "always" or "never", not {check!r:.40}')
    return str(check)


class DeterminismCheck:
    """Summaries of the states that the first sweep computed, and the comparison with those computed later."""

    def __init__(self, units: int | None, most: int = MOST_NUMBERS) -> None:
        self.units, self.most = units, most
        self.stride = 0  # known with the first summary
        self._width = 0
        self._numbers = array("d")
        self._kept: dict[int, Any] = {}  # summaries of kept states, where ranges begin and end

    def next_stop(self, start: int, stop: int) -> int:
        """The next position after `start` where a summary is due, `stop` at the latest."""
        if self.stride == 0:
            return start + 1
        return min(stop, (start // self.stride + 1) * self.stride)

    def record(self, position: int, backend: FingerprintedBackend, state: Any) -> None:
        """Hold the summary of a state that the first sweep reached, if one is due there."""
        if self.stride == 0:
            fingerprint = backend.fingerprint(state)
            self._width = len(fingerprint)
            most = max(64, self.most // max(1, self._width))
            self.stride = 1 if self.units is None else -(-self.units // most)
        if position % self.stride == 0:
            if self.units is None and len(self._numbers) >= 2 * self.most:
                self._thin_out()
                if position % self.stride:
                    return
            place = (position // self.stride - 1) * self._width
            gap = place - len(self._numbers)  # positions that were recorded, not advanced over: nothing to compare
            if gap >= 0:
                self._numbers.extend([float("nan")] * gap)
                self._numbers.extend(backend.fingerprint(state))

    def record_kept(self, position: int, backend: FingerprintedBackend, state: Any) -> None:
        """Hold the summary of a state that the first sweep keeps."""
        self._kept[position] = backend.fingerprint(state)

    def fingerprint_at(self, position: int) -> Any:
        """The summary of the state at that position, or None."""
        if position in self._kept:
            return self._kept[position]
        if self.stride == 0 or position % self.stride:
            return None
        place = (position // self.stride - 1) * self._width
        expected = self._numbers[place : place + self._width]
        return None if place < 0 or len(expected) < self._width else expected

    def may_differ(self, position: int, backend: FingerprintedBackend, state: Any) -> bool:
        """Whether a state is another one than that of the first sweep, be it by rounding that has grown."""
        expected = self.fingerprint_at(position)
        return expected is not None and backend.mismatch(state, expected, recorded=0) is not None

    def compare(self, position: int, backend: FingerprintedBackend, state: Any, *, recorded: int) -> None:
        """Raise a DeterminismError if the state is not what the first sweep saw at that position."""
        expected = self.fingerprint_at(position)
        if expected is None:
            return
        found = backend.mismatch(state, expected, recorded=recorded)
        if found is not None:
            self.raise_mismatch(found, position)

    def finish(self, backend: FingerprintedBackend) -> None:
        """The reverse sweep is done: raise what was not raised yet."""

    @staticmethod
    def raise_mismatch(found: str, position: int) -> NoReturn:
        """Raise a DeterminismError."""
        raise DeterminismError(
            f"the step is not deterministic: {found} after step {position - 1} when it was computed again, so the "
            "gradient would be wrong. It may count calls, write into what it captured, draw from a random generator "
            "that remat could not find, or read attributes or globals that were changed after the loop was called. "
            "Draw random numbers before the loop and pass them in xs, or draw from global generators or from one that "
            'the step closes over, which are replayed; check="never" turns this comparison off.'
        )

    def _thin_out(self) -> None:
        """Every second summary goes: the loop is longer than was thought."""
        width = self._width
        kept = [self._numbers[i : i + width] for i in range(width, len(self._numbers), 2 * width)]
        self._numbers = array("d", [number for numbers in kept for number in numbers])
        self.stride *= 2
