"""`remat.range`: a range that says how its loop is checkpointed."""

from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

__all__ = ["MarkedRange"]


class MarkedRange(Sequence[int]):
    """A range whose loop, in a function that `remat.checkpointed` has rewritten, has its own settings.

    Anywhere else it is an ordinary range.

    >>> [i for i in MarkedRange(3, slots=2)], MarkedRange(2, 9, 3, memory="1 MiB")
    ([0, 1, 2], remat.range(2, 9, 3, memory='1 MiB'))
    """

    __slots__ = ("range", "settings")

    def __init__(self, *bounds: SupportsIndex, **settings: Any) -> None:
        unknown = settings.keys() - {"slots", "memory", "check"}
        if unknown:
            raise TypeError(f"remat.range takes slots=, memory= and check=, not {', '.join(sorted(unknown))}")
        self.range = range(*bounds)
        self.settings = settings

    @overload
    def __getitem__(self, k: int) -> int: ...
    @overload
    def __getitem__(self, k: slice) -> range: ...
    def __getitem__(self, k: int | slice) -> int | range:
        return self.range[k]

    def __len__(self) -> int:
        return len(self.range)

    def __iter__(self) -> Iterator[int]:
        return iter(self.range)

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"remat.{self.range!r}"[:-1] + settings + ")"
