"""Source that is written line by line, with blocks."""

from collections.abc import Iterator
from contextlib import contextmanager


class Source:
    """Lines of a program, indented by the blocks that they are in."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._indent = ""

    def __call__(self, *lines: str) -> None:
        self.lines += [self._indent + line for line in lines]

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines under a header; an empty block is `pass`."""
        self(header)
        outer, self._indent, first = self._indent, self._indent + "    ", len(self.lines)
        yield
        if len(self.lines) == first:
            self("pass")
        self._indent = outer

    def text(self) -> str:
        return "\n".join(self.lines)
