"""Source that is written line by line, with blocks, and the parts that a program's text has."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


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


@dataclass
class Parts:
    """The parts of a program's text that grow while it is written."""

    classes: Source = field(default_factory=Source)
    make: Source = field(default_factory=Source)
    names: dict[str, int] = field(default_factory=dict)

    def fresh(self, stem: str) -> str:
        self.names[stem] = self.names.get(stem, 0) + 1
        return f"{stem}{self.names[stem]}"
