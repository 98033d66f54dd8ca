"""Random decisions by name.

Each decision has a generator of its own, seeded by the program's seed and the decision's path. So a program without one
of its features is the same program elsewhere, and a failing one is shortened by leaving out features one by one.
"""

from collections.abc import Mapping
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """The decisions of one part of a program."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        self.seed, self.without, self.path = seed, without, ""
        self.features: dict[str, int] = {}  # those that the program has; shared by all parts

    def part(self, name: object) -> "Choices":
        part = Choices(self.seed, self.without)
        part.path, part.features = f"{self.path}/{name}", self.features
        return part

    def chance(self, feature: str, probability: float) -> bool:
        """Whether the program has this feature here."""
        if feature in self.without or self._random(feature).random() >= probability:
            return False
        self.features[feature] = self.features.get(feature, 0) + 1
        return True

    def pick(self, name: str, options: Mapping[str, float], banned: frozenset[str] = frozenset()) -> str:
        """One of some options, by weight. The first is the plainest, taken where another one is left out."""
        options = {option: weight for option, weight in options.items() if option not in banned}
        plainest = next(iter(options))
        option = self._random(name).choices(list(options), list(options.values()))[0]
        if option == plainest:
            return plainest
        feature = f"{name}={option}"
        if feature in self.without:
            return plainest
        self.features[feature] = self.features.get(feature, 0) + 1
        return option

    def number(self, name: str, low: int, high: int) -> int:
        """A whole number from low to high."""
        if f"{name}>" in self.without:
            return low
        value = self._random(name).randint(low, high)
        if value > low:
            self.features[f"{name}>"] = self.features.get(f"{name}>", 0) + 1
        return value

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed}{self.path}/{name}")
