"""Segment passes: the order in which segments were run forward, recomputed and pulled back."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from remat.errors import FileError

__all__ = ["PASS_KINDS", "SegmentPass"]

PASS_KINDS = ("forward", "recompute", "pullback")


@dataclass(frozen=True)
class SegmentPass:
    """One pass over a segment nested in `depth` others; `again` if it runs because one of those is recomputed."""

    name: str
    what: str
    depth: int = 0
    again: bool = False
    seconds: float = 0.0
    start: float = 0.0  # on the clock of `time.perf_counter`

    def __str__(self) -> str:
        return f"{self.what:<10}{'  ' * self.depth}{self.name}{' again' * self.again}"

    def to_dict(self) -> dict[str, Any]:
        """The pass as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SegmentPass":
        """The pass from plain data."""
        # The file is untrusted, and its values end up in messages and in a page.
        depth, seconds, start = data["depth"], data["seconds"], data.get("start", 0.0)
        times = {type(seconds), type(start)} <= {int, float}
        valid = data["what"] in PASS_KINDS and type(depth) is int and 0 <= depth < 2**31 and times
        if not valid or not isfinite(seconds) or not isfinite(start) or seconds < 0:
            raise FileError(f"the saved profile is damaged: {str(data)[:80]} is no pass over a segment")
        return cls(str(data["name"]), data["what"], depth, bool(data["again"]), float(seconds), float(start))
