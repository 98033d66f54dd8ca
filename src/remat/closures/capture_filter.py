"""Which values a framework captures from closures, as the search for them asks."""

from typing import Any, ClassVar, Protocol

__all__ = ["BaseCaptureFilter", "CaptureFilter"]


class CaptureFilter(Protocol):
    """Which values a framework captures from closures."""

    opaque_types: ClassVar[tuple[type, ...]]  # objects of these types are not searched
    atomic_types: ClassVar[frozenset[type]]  # leaves of these types are neither captured nor searched

    @property
    def rebinds_sets(self) -> bool:
        """Whether items of sets and frozensets are captured, too."""
        ...

    def __bool__(self) -> bool:
        """Whether there can be anything to capture; if not, nothing is searched."""
        ...

    def accepts(self, leaf: Any) -> bool:
        """Whether a leaf is to be captured."""
        ...

    def unpack(self, value: Any) -> Any:
        """The framework's own containers as plain ones."""
        ...

    def visit(self, value: Any, name: str) -> None:
        """Called for every function, object and class that the search reaches."""
        ...


class BaseCaptureFilter:
    """The defaults of most frameworks: always search, in plain containers, and do nothing on a visit."""

    rebinds_sets = False

    def __bool__(self) -> bool:
        return True

    @staticmethod
    def unpack(value: Any) -> Any:
        """The value itself: there are no containers of the framework's own."""
        return value

    def visit(self, value: Any, name: str) -> None:
        """Do nothing."""
