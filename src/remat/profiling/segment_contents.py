"""What one call of a segment keeps and drops: the bytes of its inputs, and the tensors that its backward needs.

In: from a framework, while a profile is open. Out: values that are saved with the profile and reported.
"""

from dataclasses import asdict, dataclass
from typing import Any

from remat.errors import FileError

__all__ = ["SavedTensor", "SegmentContents", "count_of"]

LARGEST = 2**62  # bytes; a file that says more is damaged


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that a backward needs: what made it, its shape and bytes, and the line of the user's code."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    line: str
    module: str = ""  # the path of the module in which it is made

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SavedTensor":
        """The tensor from plain data."""
        shape = tuple(count_of(size) for size in data["shape"])
        return cls(
            str(data["op"]), shape, str(data["dtype"]), count_of(data["bytes"]), str(data["line"]), str(data["module"])
        )


@dataclass(frozen=True)
class SegmentContents:
    """The segment's name (the path of its module, where it is one), its inputs, and what was dropped after its run.

    `inputs` bytes are held until it is pulled back, `dropped` bytes come back when it is recomputed.
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
        """The contents from plain data; numbers that make no sense raise a FileError."""
        tensors = tuple(SavedTensor.from_dict(each) for each in data["tensors"])
        return cls(str(data["name"]), count_of(data["inputs"]), count_of(data["dropped"]), tensors)


def count_of(value: Any) -> int:
    """A number of bytes or sizes from a file, which may come from anywhere."""
    if type(value) is not int or not 0 <= value < LARGEST:
        raise FileError(f"the saved profile is damaged: {str(value)[:40]!r} is no number of bytes")
    return value
