"""The guard on a device that runs on its own: comparing at once would make the program wait for the device each time.

Summaries stay on the device, and are compared when the reverse sweep is done, before its gradients are given out.
"""

from typing import Any

import torch

from remat.execute.determinism import Guard

__all__ = ["LateGuard"]

MOST = 128  # states that are summed up


class LateGuard(Guard):
    """Compares at the end of the reverse sweep."""

    def __init__(self, units: int | None) -> None:
        super().__init__(units)
        self.stride = 1 if units is None else -(-units // MOST)
        self._noted: dict[int, torch.Tensor] = {}
        self._seen: set[int] = set()  # one comparison of a state is enough, and holds few numbers on the device
        self._found: list[tuple[int, int, torch.Tensor, torch.Tensor]] = []

    def note(self, position: int, verbs: Any, state: Any) -> None:
        """Hold the summary of a state that the first sweep reached, if one is due there."""
        if position % self.stride == 0:
            self._noted[position] = _together(verbs.late_summary(state))
            if self.units is None and len(self._noted) > 2 * MOST:
                self.stride *= 2
                self._noted = {at: held for at, held in self._noted.items() if at % self.stride == 0}

    def note_kept(self, position: int, verbs: Any, state: Any) -> None:
        """Hold the summary of a state that the first sweep keeps."""
        self._noted[position] = _together(verbs.late_summary(state))

    def suspects(self, position: int, verbs: Any, state: Any) -> bool:
        """Whether a state is another one than that of the first sweep; the program waits for the device to know."""
        if position not in self._noted:
            return False
        return verbs.differ(state, self._noted[position].tolist(), recorded=0) is not None

    def noted(self, position: int) -> Any:
        """The summary of the state at that position, or None."""
        return self._noted.get(position)

    def compare(self, position: int, verbs: Any, state: Any, *, recorded: int) -> None:
        """Hold the summary of a state that was computed again."""
        if position in self._noted and (position not in self._seen or not recorded):
            self._seen.add(position)
            found, sizes = verbs.late_summary(state), verbs.late_summary(state, of_sizes=True)
            self._found.append((position, recorded, _together(found), _together(sizes)))

    def settle(self, verbs: Any) -> None:
        """Raise a DeterminismError if a state is not what the first sweep saw at that position."""
        if not self._found:
            return
        rows = torch.stack([torch.stack([found, self._noted[at], sizes]) for at, _, found, sizes in self._found])
        for (position, recorded, _, _), (found, noted, sizes) in zip(self._found, rows.tolist(), strict=True):
            change = verbs.name_change(found, noted, sizes, recorded)
            if change is not None:
                self.refuse(change, position)


def _together(numbers: list[torch.Tensor]) -> torch.Tensor:
    """Numbers of several devices on one of them that is not the CPU."""
    device = next((number.device for number in numbers if number.device.type != "cpu"), torch.device("cpu"))
    return torch.stack([number.to(device, non_blocking=True) for number in numbers])
