"""Which values a framework captures from closures, as the search for them asks."""

from typing import Any, ClassVar, Protocol

__all__ = ["CaptureFilter"]


class CaptureFilter(Protocol):
    """Which values a framework captures from closures."""

    types: ClassVar[tuple[type, ...]]  # of values that may be captured, and are not searched

    def __bool__(self) -> bool:
        """Whether there can be anything to capture; if not, nothing is searched."""
        ...

    def accepts(self, leaf: Any) -> bool:
        """Whether a leaf is to be captured."""
        ...

    def unpack(self, value: Any) -> Any:
        """The framework's own containers as plain ones."""
        ...
