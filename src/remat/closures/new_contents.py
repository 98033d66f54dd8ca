"""Contents that follow what a step makes: lists, dicts and objects that are in the user's containers only since then.

The rule: a snapshot has, beside the contents of the containers that were found at the call, those of all that was put
into them since, and the numbers of what is inside and was written into in place, if a framework says how (`value_of`).
So a cache, a log or a running mean that the first step makes and later steps change is replayed as one that was there.

What it can miss: what comes after MOST values, what is in a container that has more than LONG items by now, and what is
behind functions. The cost: nothing until contents change; then a comparison with those at the call for each snapshot,
and about 1 us for a new container.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from remat.closures.reach import Kind, kind_of
from remat.closures.references import attributes_of
from remat.execute.array_state import small_arrays
from remat.execute.python_state import LONG, Container, Contents, PythonState
from remat.execute.rng_state import ReplayableState

__all__ = ["NewContents"]

MOST = 200  # values that are looked at for one snapshot
LAST = 32  # items of one container among them: a log is written at its end
_NUMBERS = (int, float, bool, complex, str, bytes, type(None), range)


class NewContents(PythonState):
    """The contents of containers, and of those that were put into them since this object was made."""

    def __init__(self, containers: Iterable[Container]) -> None:
        super().__init__(containers)
        self.first = super().get()  # what was there when this object was made

    def value_of(self, leaf: Any) -> ReplayableState | None:
        """What is inside of a new leaf that steps may write into, or None; a framework adds its own to arrays."""
        return next(iter(small_arrays([leaf])), None) if kind_of(type(leaf)) is Kind.ARRAY else None

    def get(self) -> Contents:
        """The present contents, with those of new containers."""
        if not self.first.changed():
            return self.first
        contents = super().get()
        new = [item for _, items in self.first.added(longest=LONG) for item in items[-LAST:]]
        if not new:
            return contents
        containers, leaves = _inside(new, {id(container) for container in self.containers})
        values = [state for state in map(self.value_of, leaves) if state is not None]
        if not containers and not values:
            return contents
        return _WithNew(contents, Contents.of(containers), [(state, state.get()) for state in values])


class _WithNew(Contents):
    """Contents of known containers and of new ones, and what is inside of leaves, with snapshots."""

    __slots__ = ("_leaves",)

    def __init__(self, known: Contents, new: Contents, leaves: Sequence[tuple[ReplayableState, Any]]) -> None:
        super().__init__([*known.pairs, *new.pairs], [*known.empty, *new.empty])
        self._leaves = leaves

    def restore(self) -> None:
        """Put everything back."""
        super().restore()
        for state, snapshot in self._leaves:
            state.set(snapshot)


def _inside(values: Iterable[Any], known: Collection[int]) -> tuple[list[Container], list[Any]]:
    """The containers that these values are or have inside, but for known ones, and the leaves that are no numbers."""
    containers: dict[int, Container] = {}
    leaves: dict[int, Any] = {}
    waiting = deque(values)
    for _ in range(MOST):
        if not waiting:
            break
        value = waiting.popleft()
        kind = kind_of(type(value))
        if kind is Kind.TUPLE:
            waiting.extend(value)
        elif kind in (Kind.ATOMIC, Kind.ARRAY) and type(value) not in _NUMBERS:
            leaves[id(value)] = value
        elif kind in (Kind.CONTAINER, Kind.OBJECT, Kind.LIBRARY):
            parts = [value] if kind is Kind.CONTAINER else []
            attributes = attributes_of(value)
            for part in parts if attributes is None else [*parts, attributes]:
                if id(part) in known or id(part) in containers:
                    continue
                containers[id(part)] = part
                if len(part) <= LONG:
                    waiting.extend(dict.values(part) if isinstance(part, dict) else part)
    return list(containers.values()), list(leaves.values())
