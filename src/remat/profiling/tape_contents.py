"""What is inside the tape of a loop's step: the tensors that its backward needs, each with its op and line.

While a profile is open, a framework provides this for one recorded step of each call; it is saved with the profile and
reported.
"""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from remat.profiling.segment_contents import SavedTensor, count_of

__all__ = ["MOST_TENSORS", "TapeContents", "TapeListing"]

MOST_TENSORS = 200  # the most tensors to list, the largest first


@dataclass(frozen=True)
class TapeContents:
    """The tensors of a tape, the largest first; `more` smaller ones, `more_bytes` in total, are not listed."""

    tensors: tuple[SavedTensor, ...]
    steps: int = 1  # the number of steps they belong to: one, unless steps could not be told apart
    more: int = 0
    more_bytes: int = 0

    @classmethod
    def of(cls, tensors: list[SavedTensor], steps: int = 1) -> "TapeContents":
        """The contents from tensors in any order."""
        ordered = sorted(tensors, key=lambda tensor: -tensor.bytes)
        rest = ordered[MOST_TENSORS:]
        return cls(tuple(ordered[:MOST_TENSORS]), steps, len(rest), sum(tensor.bytes for tensor in rest))

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors) + self.more_bytes

    def to_dict(self) -> dict[str, Any]:
        """The contents as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TapeContents":
        """The contents from plain data."""
        tensors = tuple(SavedTensor.from_dict(each) for each in data["tensors"])
        return cls(tensors, *(count_of(data[name]) for name in ("steps", "more", "more_bytes")))


class TapeListing(Protocol):
    """How a framework lists a tape: it observes the recording of one range, then inspects the tape."""

    def begin(self) -> None:
        """Start observing."""
        ...

    def end(self) -> None:
        """Stop observing; also called if recording fails."""
        ...

    def contents(self, tape: Any) -> TapeContents:
        """What is inside the recorded tape."""
        ...
