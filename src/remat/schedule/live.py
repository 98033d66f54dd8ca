"""What is live while an op runs: bytes by level and kind, and the individual states and tapes."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Live", "LiveItem"]

LiveItem = tuple[str, str, int]  # one live thing ("state 9"), the level it is in, its bytes


@dataclass(frozen=True)
class Live:
    """Bytes live while an op runs: states by level (the device's include the working state), tapes, cotangents."""

    device: str
    state: Mapping[str, int]
    tape: int
    cotangent: int

    def size(self, level: str, kind: str) -> int:
        """Bytes of one kind ("state", "tape" or "cotangent") in one level."""
        if kind == "state":
            return self.state.get(level, 0)
        return (self.tape if kind == "tape" else self.cotangent) if level == self.device else 0

    def total(self, level: str | None = None) -> int:
        """Bytes of all kinds in `level` (default: the device)."""
        level = self.device if level is None else level
        return sum(self.size(level, kind) for kind in ("state", "tape", "cotangent"))
