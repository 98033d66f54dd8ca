"""The determinism check on a device that runs asynchronously: to compare at once would synchronize each time.

Fingerprints stay on the device. They are compared when the reverse sweep is done, before its gradients are returned.
"""

from typing import Any

import torch

from remat.execute.determinism import DeterminismCheck

__all__ = ["DeviceDeterminismCheck"]

MOST = 128  # states with a fingerprint


class DeviceDeterminismCheck(DeterminismCheck):
    """Compares fingerprints at the end of the reverse sweep."""

    def __init__(self, units: int | None) -> None:
        super().__init__(units)
        self.stride = 1 if units is None else -(-units // MOST)
        self._fingerprints: dict[int, torch.Tensor] = {}
        self._seen: set[int] = set()  # one comparison of a position is enough, and takes little memory on the device
        self._recomputed: list[tuple[int, int, torch.Tensor, torch.Tensor]] = []

    def record(self, position: int, backend: Any, state: Any) -> None:
        """Store the fingerprint of a state that the first sweep reached, if one is due there."""
        if position % self.stride == 0:
            self._fingerprints[position] = _stack(backend.device_fingerprint(state))
            if self.units is None and len(self._fingerprints) > 2 * MOST:
                self.stride *= 2
                self._fingerprints = {
                    at: fingerprint for at, fingerprint in self._fingerprints.items() if at % self.stride == 0
                }

    def record_kept(self, position: int, backend: Any, state: Any) -> None:
        """Store the fingerprint of a state that the first sweep keeps."""
        self._fingerprints[position] = _stack(backend.device_fingerprint(state))

    def may_differ(self, position: int, backend: Any, state: Any) -> bool:
        """Whether a state differs from that of the first sweep; this synchronizes with the device."""
        if position not in self._fingerprints:
            return False
        return backend.mismatch(state, self._fingerprints[position].tolist(), recorded=0) is not None

    def fingerprint_at(self, position: int) -> Any:
        """The fingerprint of the state at that position, or None."""
        return self._fingerprints.get(position)

    def compare(self, position: int, backend: Any, state: Any, *, recorded: int) -> None:
        """Store the fingerprint of a recomputed state, to be compared by `finish`."""
        if position in self._fingerprints and (position not in self._seen or not recorded):
            self._seen.add(position)
            now, sizes = backend.device_fingerprint(state), backend.device_fingerprint(state, of_sizes=True)
            self._recomputed.append((position, recorded, _stack(now), _stack(sizes)))

    def finish(self, backend: Any) -> None:
        """Raise a DeterminismError if a state is not what the first sweep saw at that position."""
        if not self._recomputed:
            return
        rows = torch.stack(
            [torch.stack([now, self._fingerprints[at], sizes]) for at, _, now, sizes in self._recomputed]
        )
        for (position, recorded, _, _), (now, expected, sizes) in zip(self._recomputed, rows.tolist(), strict=True):
            mismatch = backend.describe_mismatch(now, expected, sizes, recorded)
            if mismatch is not None:
                self.raise_mismatch(mismatch, position)


def _stack(numbers: list[torch.Tensor]) -> torch.Tensor:
    """Numbers of several devices as one tensor, on one of them that is not the CPU, if there is one."""
    device = next((number.device for number in numbers if number.device.type != "cpu"), torch.device("cpu"))
    return torch.stack([number.to(device, non_blocking=True) for number in numbers])
