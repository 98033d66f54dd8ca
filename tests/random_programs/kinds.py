"""Kinds of statements: a table that the functions which write them are put into."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.random_programs.choices import Choices

Where = TypeVar("Where")
Write = Callable[[Where, Choices], None]


@dataclass(frozen=True)
class Kind(Generic[Where]):
    """A kind of statement: how likely it is, what writes it, and what programs may ban it for."""

    weight: float
    write: Callable[[Where, Choices], None]
    tags: frozenset[str]


class Kinds(dict[str, Kind[Where]]):
    """The kinds of one framework, by name. The first one is the plainest."""

    def kind(self, weight: float, *tags: str) -> Callable[[Write[Where]], Write[Where]]:
        """A decorator that puts a function into the table."""

        def registered(write: Write[Where]) -> Write[Where]:
            self[write.__name__] = Kind(weight, write, frozenset(tags))
            return write

        return registered

    def write_body(self, s: Where, c: Choices, banned: frozenset[str], most: int = 3) -> None:
        """One to `most` statements, of kinds that have none of the banned tags."""
        names = frozenset(name for name, each in self.items() if each.tags & banned)
        weights = {name: each.weight for name, each in self.items()}
        for number in range(c.number("statements", 1, most)):
            part = c.part(number)
            self[part.pick("do", weights, names)].write(s, part)
