"""Python state: the plain contents of dicts, lists, sets and deques that a user's function can reach.

The rule: recomputed code starts from the contents that these containers had when it was first called, and afterwards
the containers get back the contents that they had before the recomputation, however it ends. The attributes of an
object are the contents of its `__dict__`, so counters, flags, logs and key-value caches do not change.

Contents are shallow copies, compared item by item with `is`: a change in a list inside a list is noticed in the inner
list, which is a container of its own. What it can miss: writes into an item that is not a container (an array, an
iterator), and changes in the middle of a container of more than LONG items, of which only the number and the last items
are compared. A name that a function rebinds by `global` or `nonlocal` is a container of its value (`Variable`), as is
an attribute that is not in a `__dict__` (closures/stored_attributes.py); one that only counts, as in `calls += 1`, is
left alone (closures/bytecode.py).

The cost: 0.2 us to copy a container and 0.4 us to compare it, for ten items, the average.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import is_not
from typing import Any, Protocol, TypeAlias

from remat.pytree import flatten

__all__ = ["UNSET", "Container", "Contents", "Place", "PythonState", "Variable"]

Place: TypeAlias = tuple[int, Any]  # the id of a container, and a key if it is a dict, else None
Container: TypeAlias = "dict[Any, Any] | list[Any] | set[Any] | deque[Any] | Variable"
UNSET = object()  # stands for the value of a variable that has none
LONG = 1_000  # items; longer containers are tables of data or logs, which grow at their end
TAIL = 8  # items at the end of a long container that are compared


class _Reference(Protocol):
    def get(self) -> Any: ...

    def put(self, value: Any) -> None: ...


class Variable:
    """A variable as a container: its value is the only item, and it is empty if unset; writing UNSET deletes it."""

    __slots__ = ("_reference",)

    def __init__(self, reference: _Reference) -> None:
        self._reference = reference

    def __len__(self) -> int:
        return int(self._reference.get() is not UNSET)

    def __iter__(self) -> Iterator[Any]:
        value = self._reference.get()
        return iter(() if value is UNSET else (value,))

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self._reference.put(value)

    def fill(self, items: Iterable[Any]) -> None:
        """Give it these items."""
        self._reference.put(next(iter(items), UNSET))


class Contents:
    """The items of some containers at one time; equal if all items are the same objects."""

    __slots__ = ("_dicts", "_others", "empty")

    def __init__(
        self, pairs: Sequence[tuple[Container, Any]], empty: Sequence[Container] = (), dicts: "_Dicts | None" = None
    ) -> None:
        self._others, self._dicts = pairs, dicts
        self.empty = empty  # containers without items: most containers of a module are empty, and stay so

    @classmethod
    def of(cls, containers: Iterable[Container]) -> "Contents":
        """The current contents of these containers."""
        every = list(containers)
        filled = [container for container in every if container]
        dicts = [container for container in filled if type(container) is dict and len(container) <= LONG]
        others = [c for c in filled if type(c) is not dict or len(c) > LONG] if len(dicts) < len(filled) else []
        pairs = [(container, _copied(container)) for container in others]
        return cls(pairs, [container for container in every if not container], _Dicts(dicts) if dicts else None)

    @property
    def pairs(self) -> list[tuple[Container, Any]]:
        """The containers that had items, each with a copy of its items."""
        return [*self._others] if self._dicts is None else [*self._dicts.pairs(), *self._others]

    def changed(self) -> "Contents":
        """The part of these contents that containers no longer have."""
        dicts = None if self._dicts is None or self._dicts.are_there() else self._dicts
        if dicts is None and not self._others and not any(self.empty):
            return _NOTHING  # the usual case
        pairs = self._others if dicts is None else [*dicts.pairs(), *self._others]
        return Contents([pair for pair in pairs if not _has(*pair)], [c for c in self.empty if c])

    def containers(self) -> list[Container]:
        """All containers, including the empty ones."""
        return [*(container for container, _ in self.pairs), *self.empty]

    def added(self, longest: float = math.inf) -> list[tuple[Container, list[Any]]]:
        """The items (values, for dicts) added to each container since; those of over `longest` items are skipped."""
        changed = self.changed()
        pairs = [*changed.pairs, *((container, ()) for container in changed.empty)]
        return [(pair[0], _added(*pair)) for pair in pairs if len(pair[0]) <= longest]

    def added_leaves(self) -> list[Any]:
        """The leaves of the added items."""
        return [leaf for _, items in self.added() for item in items for leaf in flatten(item)[0]]

    def added_places(self) -> list[tuple[Place, Any]]:
        """The added items, each with its place; all items of a list are in one place, since their indices shift."""
        changed = self.changed()
        pairs = [*changed.pairs, *((container, ()) for container in changed.empty)]
        return [(place, item) for container, items in pairs for place, item in _added_places(container, items)]

    def restore(self) -> None:
        """Restore the contents; containers that are unchanged are not written into."""
        changed = self.changed()
        if changed is _NOTHING:
            return
        for container, items in changed.pairs:
            _fill(container, items)
        for container in changed.empty:
            _fill(container, ())

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Contents) or len(self._others) != len(other._others) or self._dicts != other._dicts:
            return False
        if len(self.empty) != len(other.empty) or any(map(is_not, self.empty, other.empty)):
            return False
        return all(
            mine is theirs and _same(items, other_items)
            for (mine, items), (theirs, other_items) in zip(self._others, other._others, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._others or self.empty or self._dicts)


class _Dicts:
    """The items of several dicts in one list: comparing them all at once takes a third of the time."""

    __slots__ = ("_dicts", "_keys", "_sizes", "_values")

    def __init__(self, dicts: Sequence[dict[Any, Any]]) -> None:
        self._dicts, self._sizes = dicts, [*map(len, dicts)]
        self._keys, self._values = [*chain.from_iterable(dicts)], [*chain.from_iterable(map(dict.values, dicts))]

    def pairs(self) -> list[tuple[Container, Any]]:
        """The dicts, each with a copy that has its recorded items."""
        items = zip(self._keys, self._values, strict=True)
        return [(each, dict(islice(items, size))) for each, size in zip(self._dicts, self._sizes, strict=True)]

    def are_there(self) -> bool:
        """Whether the dicts still have these items, in this order."""
        if [*map(len, self._dicts)] != self._sizes or [*chain.from_iterable(self._dicts)] != self._keys:
            return False
        return not any(map(is_not, chain.from_iterable(map(dict.values, self._dicts)), self._values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Dicts) or self._sizes != other._sizes:
            return False
        mine, others = (self._dicts, self._keys, self._values), (other._dicts, other._keys, other._values)
        return not any(any(map(is_not, a, b)) for a, b in zip(mine, others, strict=True))

    __hash__ = None  # type: ignore[assignment]


_NOTHING = Contents(())


class PythonState:
    """The contents of containers as a replayable state (rng_state.py)."""

    is_read = True  # a step that writes nothing may still read it

    def __init__(self, containers: Iterable[Container]) -> None:
        # Each once, by identity: containers are not hashable, and equal ones need not be the same.
        self.containers = list({id(container): container for container in containers}.values())

    def version(self, snapshot: Contents | None = None) -> Contents:
        """The contents: equal versions have the same items."""
        return self.get() if snapshot is None else snapshot

    def get(self) -> Contents:
        """The current contents."""
        return Contents.of(self.containers)

    def set(self, snapshot: Contents) -> None:
        """Restore contents."""
        snapshot.restore()


class _LongContents:
    """The number of items of a long container, and its last items."""

    __slots__ = ("size", "tail")

    def __init__(self, container: Container) -> None:
        self.size, self.tail = len(container), _tail(container)


def _tail(container: Container) -> list[Any]:
    """The last items (keys and values, for dicts), last first; none for a set, which has no order."""
    if isinstance(container, set | Variable):  # a variable is copied as a whole
        return []
    if isinstance(container, dict):
        return [*chain.from_iterable(islice(reversed(container.items()), TAIL))]
    return [*islice(reversed(container), TAIL)]


def _copied(container: Container) -> Any:
    if len(container) > LONG and not isinstance(container, Variable):
        return _LongContents(container)
    # Methods of the base class, here and below: a subclass may check, count or forward reads and writes.
    if isinstance(container, dict):
        return dict(OrderedDict.items(container)) if isinstance(container, OrderedDict) else dict.copy(container)
    return set.copy(container) if isinstance(container, set) else list(container)


def _has(container: Container, items: Any) -> bool:
    """Whether a container still has these items."""
    return _same(_LongContents(container) if isinstance(items, _LongContents) else container, items)


def _added(container: Container, items: Any) -> list[Any]:
    """The items of a container that are not among `items`; for a long one, those added at its end."""
    now = container.values() if isinstance(container, dict) else container
    if isinstance(items, _LongContents):
        return list(islice(now, items.size, None))
    then = {id(item) for item in (items.values() if isinstance(items, dict) else items)}
    return [item for item in now if id(item) not in then]


def _added_places(container: Container, items: Any) -> list[tuple[Place, Any]]:
    added = _added(container, items)
    if not isinstance(container, dict):
        return [((id(container), None), item) for item in added]
    new = {id(item) for item in added}
    return [((id(container), key), item) for key, item in dict.items(container) if id(item) in new]


def _same(a: Any, b: Any) -> bool:
    """Whether two copies or containers have the same items, in the same order."""
    if isinstance(a, _LongContents) or isinstance(b, _LongContents):
        return type(a) is type(b) and a.size == b.size and _same(a.tail, b.tail)
    if len(a) != len(b):
        return False
    if isinstance(a, set):
        return {id(item) for item in a} == {id(item) for item in b}
    if isinstance(a, dict):
        return not any(map(is_not, a.values(), b.values())) and not any(map(is_not, a, b))
    return not any(map(is_not, a, b))


def _fill(container: Container, items: Any) -> None:
    """Give a container these items; a long one is only set back to its length, and its earlier items stay."""
    if isinstance(items, _LongContents):
        _cut(container, items)
        return
    if isinstance(container, Variable):
        container.fill(items)
        return
    # An OrderedDict stores its order separately from its base class.
    base: Any = next(cls for cls in (OrderedDict, dict, list, set, deque) if isinstance(container, cls))
    base.clear(container)
    (base.extend if base in (list, deque) else base.update)(container, items)


def _cut(container: Container, items: _LongContents) -> None:
    """Remove what was added at the end of a long container, or add the last items that were removed."""
    if isinstance(container, set | Variable):
        return
    while len(container) > items.size:
        container.popitem() if isinstance(container, dict) else container.pop()
    missing = items.size - len(container)
    if isinstance(container, dict):
        dict.update(container, reversed([*zip(items.tail[::2], items.tail[1::2], strict=True)][:missing]))
    else:
        container.extend(reversed(items.tail[:missing]))
