"""Values as versioned JSON, with the same small envelope for every kind: `{"remat": "loop", "version": 1, ...}`.

Loading takes text or a path, trusted or not, and gives the value, or a FileError that says what is wrong with the file.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from remat.errors import FileError, ProblemError

__all__ = ["Serializable", "check_envelope", "envelope_kind", "in_file", "read_json", "read_limited", "wrong_kind"]

LARGEST = 256 * 2**20  # the most bytes of JSON to read; a million-step plan takes about half


class Serializable(ABC):
    """A value that can be saved as JSON; the final class defines its kind, its fields and how to rebuild it."""

    kind: ClassVar[str]
    version: ClassVar[int] = 1

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The value as plain data, without the envelope."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The value from plain data."""

    def to_json(self) -> str:
        """The value as versioned JSON text."""
        return json.dumps(self.envelope(), indent=1)

    def envelope(self) -> dict[str, Any]:
        """The value as plain data in its envelope: kind and version come first."""
        return {"remat": self.kind, "version": self.version, **self.to_dict()}

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The value that `to_json` wrote; raise a FileError for anything else."""
        return cls.from_envelope(read_json(text))

    @classmethod
    def from_envelope(cls, data: Any) -> Self:
        """The value from data in its envelope."""
        fields = check_envelope(data, cls.kind, cls.version)
        try:
            return cls.from_dict(fields)
        except ProblemError as error:
            raise FileError(f"the saved {cls.kind} makes no sense: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FileError(f"the saved {cls.kind} lacks a field or has a wrong one: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the value to `path` as JSON."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The value that `save` wrote to `path`."""
        with in_file(path):
            return cls.from_json(read_limited(path))


@contextmanager
def in_file(path: str | Path) -> Iterator[None]:
    """A context that adds the path of the file to the FileErrors raised inside it."""
    try:
        yield
    except FileError as error:
        if str(path) in str(error):
            raise
        raise FileError(f"{path}: {error}") from error


def read_limited(path: str | Path) -> bytes:
    """The bytes of the file at `path`; raise a FileError if there are more than a saved value can have."""
    size = Path(path).stat().st_size
    if size > LARGEST:
        raise FileError(f"{path} has {size} bytes; a saved file has at most {LARGEST}")
    return Path(path).read_bytes()


def read_json(text: str | bytes) -> Any:
    """The data in JSON `text`; raise a FileError for text that is not JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise FileError("the file is nested too deeply to be a saved remat value") from None
    except ValueError as error:
        raise FileError(f"the file is not JSON, or it is cut off: {error}") from None


def check_envelope(data: Any, kind: str, version: int) -> dict[str, Any]:
    """The fields in the envelope; raise a FileError for a wrong kind or version."""
    saved_kind = envelope_kind(data, kind)
    if saved_kind != kind:
        raise wrong_kind(saved_kind, kind)
    fields = {name: value for name, value in data.items() if name != "remat"}
    saved_version = fields.pop("version", None)
    if saved_version != version or isinstance(saved_version, bool):
        raise FileError(
            f"this {kind} is of format version {str(saved_version)[:20]}; this remat reads version {version}. "
            "Save it again with a matching remat"
        )
    return fields


def envelope_kind(data: Any, expected: str) -> str:
    """The kind in an envelope; if there is no envelope, raise a FileError that says what was expected."""
    if not isinstance(data, dict) or "remat" not in data:
        raise FileError(f'this is not a saved remat value: it has no "remat" field (expected "{expected}")')
    return str(data["remat"])


def wrong_kind(kind: str, expected: str) -> FileError:
    """The error for a saved value that is not of the `expected` kind."""
    return FileError(f"this is a saved {kind[:40]!r}, not a {expected}")
