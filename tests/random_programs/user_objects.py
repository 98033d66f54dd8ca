"""Containers and objects of the user's that random programs of all frameworks use."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

__all__ = ["D1", "D2", "D3", "D4", "P1", "P2", "P3", "P4", "Box"]

P1, P2, P3, P4 = (namedtuple(f"P{n}", list("abcd"[:n])) for n in (1, 2, 3, 4))


@dataclass
class D1:
    a: Any


@dataclass
class D2(D1):
    b: Any


@dataclass
class D3(D2):
    c: Any


@dataclass
class D4(D3):
    d: Any


class Box:
    """An object of the user's with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)
