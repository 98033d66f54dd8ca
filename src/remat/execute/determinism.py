"""The determinism check: a step that computes something else when it is recomputed would make the gradient wrong.

What is recorded: in the first sweep, the fingerprint (`fingerprint.py`: one float per leaf) of every kept state, and of
the states at multiples of `stride`. When the reverse sweep recomputes one of these states, its fingerprint is compared.

Memory: `stride` is chosen such that there are at most MOST_NUMBERS floats (8 KiB), or 64 states if a state has more
than 16 leaves. In a loop of unknown length the stride starts at 1 and doubles whenever twice that is reached. Kept
states add one fingerprint each, which is little compared with the state itself.

What it can miss: a difference that has disappeared by the next recorded state, one below the tolerance of the
fingerprint, and one in values that are not part of the state. Steps that are never recomputed need no check.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, get_args

from remat.errors import DeterminismError, ProblemError
from remat.execute.backend_protocol import FingerprintedBackend

__all__ = ["CHECKS", "Check", "DeterminismCheck", "parse_check"]

Check = Literal["first", "always", "never"]
CHECKS = get_args(Check)
MOST_NUMBERS = 1024  # floats for the evenly spaced fingerprints of one loop: 8 KiB
FEWEST_STATES = 64  # recorded even if their fingerprints take more than MOST_NUMBERS floats


def parse_check(check: Any) -> str:
    """The user's `check=` argument, validated."""
    if check not in CHECKS:
        raise ProblemError(f'check must be "first", "always" or "never", not {check!r:.40}')
    return str(check)


class DeterminismCheck:
    """Fingerprints of states of the first sweep, and their comparison with recomputed states.

    `units` is the number of steps, None if it is not known yet; `most` bounds the number of recorded floats. With
    `kept_only` only kept states are recorded: for plans that recompute only whole ranges between kept states.
    """

    def __init__(self, units: int | None, most: int = MOST_NUMBERS, *, kept_only: bool = False) -> None:
        self.units, self.most = units, most
        self.stride = sys.maxsize if kept_only else 0  # 0 until the first fingerprint shows how many floats one has
        self._width = 0  # floats of one fingerprint
        self._numbers: Any = array("d")  # the fingerprints of states stride, 2·stride, …, one after the other
        # Kept states have their own: recomputed ranges begin and end at them, so each range can be compared.
        self._kept: dict[int, Sequence[Any]] = {}

    def next_stop(self, start: int, stop: int) -> int:
        """The next state after `start` whose fingerprint is due, or `stop` if that comes first."""
        if self.stride == 0:
            return start + 1
        return min(stop, (start // self.stride + 1) * self.stride)

    def fingerprint(self, backend: FingerprintedBackend, state: Any) -> Sequence[Any]:
        """The fingerprint of a state."""
        return backend.fingerprint(state)

    def record(self, position: int, backend: FingerprintedBackend, state: Any) -> None:
        """Record the fingerprint of a state that the first sweep has reached, if one is due at this position."""
        if self.stride == 0:
            self._width = len(self.fingerprint(backend, state))
            most_states = max(FEWEST_STATES, self.most // max(1, self._width))
            self.stride = 1 if self.units is None else -(-self.units // most_states)
        if position % self.stride == 0:
            if self.units is None and len(self._numbers) >= 2 * self.most:
                self._thin_out()
                if position % self.stride:
                    return
            offset = (position // self.stride - 1) * self._width
            # States inside a recorded range never come here; their fingerprints are nan, which compares as equal.
            missing = offset - len(self._numbers)
            if missing >= 0:
                self._numbers.extend([float("nan")] * missing)
                self._numbers.extend(self.fingerprint(backend, state))

    def record_kept(self, position: int, backend: FingerprintedBackend, state: Any) -> None:
        """Record the fingerprint of a state that the first sweep keeps."""
        self._kept[position] = self.fingerprint(backend, state)

    def fingerprint_at(self, position: int) -> Any:
        """The recorded fingerprint of the state at a position, or None."""
        if position in self._kept:
            return self._kept[position]
        if self.stride == 0 or position % self.stride:
            return None
        offset = (position // self.stride - 1) * self._width
        expected = self._numbers[offset : offset + self._width]
        return None if offset < 0 or len(expected) < self._width else expected

    def may_differ(self, position: int, backend: FingerprintedBackend, state: Any) -> bool:
        """Whether a state differs from the first sweep's, even if only by amplified rounding errors."""
        expected = self.fingerprint_at(position)
        return expected is not None and backend.mismatch(state, expected, recorded=0) is not None

    def compare(self, position: int, backend: FingerprintedBackend, state: Any, *, recorded: int) -> None:
        """Raise a DeterminismError if a recomputed state differs from the one that the first sweep recorded.

        `recorded` is the number of steps leading to it that ran with a tape, in which rounding may differ.
        """
        expected = self.fingerprint_at(position)
        if expected is None:
            return
        mismatch = backend.mismatch(state, expected, recorded=recorded)
        if mismatch is not None:
            self.raise_mismatch(mismatch, position)

    def finish(self, backend: FingerprintedBackend) -> None:
        """Called after the reverse sweep, for checks that defer their comparisons; this one compares at once."""

    @staticmethod
    def raise_mismatch(mismatch: str, position: int) -> NoReturn:
        """Raise a DeterminismError for the state before step `position`; `mismatch` says which leaf differs."""
        raise DeterminismError(
            f"the step is not deterministic: {mismatch} after step {position - 1} when it was recomputed, so the "
            "gradient would be wrong. It reads something that changes between two runs: a clock (time.time), "
            "os.urandom, an iterator (next), a counter, an attribute or global that was changed since, or a random "
            "generator that remat could not find (such as the dropout inside cuDNN's RNNs). Read it before the loop "
            "and pass it in xs; global generators, and those that the step closes over, are replayed. "
            'check="never" turns this comparison off.'
        )

    def _thin_out(self) -> None:
        """Double the stride, and drop every second fingerprint."""
        width = self._width
        # Index 0 is state `stride`, so the multiples of the doubled stride have the odd indices.
        for i in reversed(range(0, len(self._numbers), 2 * width)):
            del self._numbers[i : i + width]
        self.stride *= 2
