"""What one call of a segment keeps and drops: the bytes of its inputs, and the tensors that its backward needs.

A framework provides these values while a profile is open; they are saved with the profile and reported.
"""

from dataclasses import asdict, dataclass
from typing import Any

from remat.errors import FileError

__all__ = ["KeptBlock", "SavedTensor", "SegmentContents", "count_of"]

LARGEST = 2**62  # numbers in a file must be smaller, or it is damaged


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that a backward needs: the op that made it, its shape and bytes, and the line of the user's code."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    line: str
    module: str = ""  # the path of the module that saves it

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SavedTensor":
        """The tensor from plain data."""
        shape = tuple(count_of(size) for size in data["shape"])
        return cls(
            str(data["op"]), shape, str(data["dtype"]), count_of(data["bytes"]), str(data["line"]), str(data["module"])
        )


@dataclass(frozen=True)
class SegmentContents:
    """The segment's name (the path of its module, if it is one), its inputs, and what was dropped after its run.

    `inputs` bytes are held until it is pulled back; `dropped` bytes are live again once it is recomputed.
    """

    name: str
    inputs: int
    dropped: int
    tensors: tuple[SavedTensor, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The contents as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SegmentContents":
        """The contents from plain data; raise a FileError for invalid numbers."""
        tensors = tuple(SavedTensor.from_dict(each) for each in data["tensors"])
        return cls(str(data["name"]), count_of(data["inputs"]), count_of(data["dropped"]), tensors)


@dataclass
class KeptBlock:
    """A block that is not a segment: what it keeps, since when, and until when, if its backward was seen."""

    contents: SegmentContents
    since: float
    until: float | None = None

    def release(self, time: float) -> None:
        """Note that the backward has pulled the block back."""
        self.until = time

    def to_dict(self) -> dict[str, Any]:
        """The block as plain data."""
        return {"contents": self.contents.to_dict(), "time": self.since, "until": self.until}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "KeptBlock":
        """The block from plain data."""
        until = data.get("until")
        contents = SegmentContents.from_dict(data["contents"])
        return cls(contents, float(data["time"]), None if until is None else float(until))


def count_of(value: Any) -> int:
    """A size or number of bytes from an untrusted file; raise a FileError if it is invalid."""
    if type(value) is not int or not 0 <= value < LARGEST:
        raise FileError(f"the saved profile is damaged: {str(value)[:40]!r} is no number of bytes")
    return value
