"""Contents that include the lists, dicts and objects that steps create and put into the user's containers.

The rule: a snapshot has the contents of the containers that were found at the call, those of all containers that were
put into them since, and the numbers of the leaves inside that steps may write into (`value_of`). So a cache, a log or a
running mean that the first step creates and later steps change is replayed like one that existed before.

What it can miss: what comes after MOST values, items of a container that has grown beyond LONG items, and what only
functions refer to. The cost: nothing until contents change; then each snapshot compares them with those at the call,
and takes about 1 us for a new container.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from remat.closures.kinds import Kind, kind_of
from remat.closures.references import attributes_of
from remat.execute.array_state import small_arrays
from remat.execute.python_state import LONG, Container, Contents, Place, PythonState
from remat.execute.rng_state import ReplayableState

__all__ = ["NewContents", "leaves_by_place"]

MOST = 200  # values that one snapshot looks at
LAST = 32  # items of one container among them, the last ones: a log is written at its end
_NUMBERS = (int, float, bool, complex, str, bytes, type(None), range)


class NewContents(PythonState):
    """The contents of containers, and of those that were put into them since this object was created."""

    def __init__(self, containers: Iterable[Container]) -> None:
        super().__init__(containers)
        self.first = super().get()  # when this object was created

    def value_of(self, leaf: Any) -> ReplayableState | None:
        """The replayable state of a new leaf that steps may write into, or None; frameworks extend this to tensors."""
        return next(iter(small_arrays([leaf])), None) if kind_of(type(leaf)) is Kind.ARRAY else None

    def get(self) -> Contents:
        """The current contents, including those of new containers."""
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


def leaves_by_place(before: Contents) -> list[tuple[Place, Any]]:
    """The leaves inside all items that were added since, the first and last MOST of them, with the items' places."""
    added = before.added_places()
    known = {id(container) for container in before.containers()} if added else ()
    ends = added if len(added) <= 2 * MOST else [*added[:MOST], *added[-MOST:]]
    return [(place, leaf) for place, item in ends for leaf in _inside([item], known)[1]]


class _WithNew(Contents):
    """The contents of known and of new containers, and snapshots of the leaves that steps may write into."""

    __slots__ = ("_leaves",)

    def __init__(self, known: Contents, new: Contents, leaves: Sequence[tuple[ReplayableState, Any]]) -> None:
        super().__init__([*known.pairs, *new.pairs], [*known.empty, *new.empty])
        self._leaves = leaves

    def restore(self) -> None:
        """Restore the containers and the leaves."""
        super().restore()
        for state, snapshot in self._leaves:
            state.set(snapshot)


def _inside(values: Iterable[Any], known: Collection[int]) -> tuple[list[Container], list[Any]]:
    """The containers among and inside these values, except known ones, and the leaves that are not plain numbers."""
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
