"""The guard on a device that runs on its own: comparing at once would make the program wait for the device each time.

Summaries stay on the device, and are compared when the reverse sweep is done, before its gradients are given out.
"""

from typing import Any

import torch

from remat.execute.determinism import DeterminismCheck

__all__ = ["DeviceDeterminismCheck"]

MOST = 128  # states that are summed up


class DeviceDeterminismCheck(DeterminismCheck):
    """Compares at the end of the reverse sweep."""

    def __init__(self, units: int | None) -> None:
        super().__init__(units)
        self.stride = 1 if units is None else -(-units // MOST)
        self._fingerprints: dict[int, torch.Tensor] = {}
        self._seen: set[int] = set()  # one comparison of a state is enough, and holds few numbers on the device
        self._recomputed: list[tuple[int, int, torch.Tensor, torch.Tensor]] = []

    def record(self, position: int, backend: Any, state: Any) -> None:
        """Hold the summary of a state that the first sweep reached, if one is due there."""
        if position % self.stride == 0:
            self._fingerprints[position] = _together(backend.device_fingerprint(state))
            if self.units is None and len(self._fingerprints) > 2 * MOST:
                self.stride *= 2
                self._fingerprints = {at: held for at, held in self._fingerprints.items() if at % self.stride == 0}

    def record_kept(self, position: int, backend: Any, state: Any) -> None:
        """Hold the summary of a state that the first sweep keeps."""
        self._fingerprints[position] = _together(backend.device_fingerprint(state))

    def may_differ(self, position: int, backend: Any, state: Any) -> bool:
        """Whether a state is another one than that of the first sweep; the program waits for the device to know."""
        if position not in self._fingerprints:
            return False
        return backend.mismatch(state, self._fingerprints[position].tolist(), recorded=0) is not None

    def fingerprint_at(self, position: int) -> Any:
        """The summary of the state at that position, or None."""
        return self._fingerprints.get(position)

    def compare(self, position: int, backend: Any, state: Any, *, recorded: int) -> None:
        """Hold the summary of a state that was computed again."""
        if position in self._fingerprints and (position not in self._seen or not recorded):
            self._seen.add(position)
            found, sizes = backend.device_fingerprint(state), backend.device_fingerprint(state, of_sizes=True)
            self._recomputed.append((position, recorded, _together(found), _together(sizes)))

    def finish(self, backend: Any) -> None:
        """Raise a DeterminismError if a state is not what the first sweep saw at that position."""
        if not self._recomputed:
            return
        rows = torch.stack(
            [torch.stack([found, self._fingerprints[at], sizes]) for at, _, found, sizes in self._recomputed]
        )
        for (position, recorded, _, _), (found, expected, sizes) in zip(self._recomputed, rows.tolist(), strict=True):
            mismatch = backend.describe_mismatch(found, expected, sizes, recorded)
            if mismatch is not None:
                self.raise_mismatch(mismatch, position)


def _together(numbers: list[torch.Tensor]) -> torch.Tensor:
    """Numbers of several devices on one of them that is not the CPU."""
    device = next((number.device for number in numbers if number.device.type != "cpu"), torch.device("cpu"))
    return torch.stack([number.to(device, non_blocking=True) for number in numbers])
