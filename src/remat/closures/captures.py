"""Captured values, as references that can be bound to other values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat.closures.references import ItemRef, Reference, SetRef
from remat.pytree import LEAF, TreeDef, flatten

__all__ = ["CapturedReference", "Captures"]


@dataclass(frozen=True)
class CapturedReference:
    """A reference to a captured value, or to a tuple that contains captured values among others."""

    name: str  # of the variable, for messages
    keys: tuple[Any, ...]  # of nested items, from that variable to the reference
    reference: Reference
    tree: TreeDef  # the structure of the value that is referred to
    values: tuple[tuple[int, int], ...]  # (index among the leaves, index among all captured values)
    leaves: tuple[Any, ...]  # of that value, with None for each captured one

    def with_values(self, values: Any) -> Any:
        """The value to bind the reference to, with `values`, by index, in place of the captured ones."""
        if self.tree is LEAF:  # the usual case, and there may be many
            return values[self.values[0][1]]
        leaves = list(self.leaves)
        for leaf_index, index in self.values:
            leaves[leaf_index] = values[index]
        return self.tree.unflatten(leaves)


class Captures:
    """The places at which a search finds captured values, which are those that `accepts` is true of.

    `unpack` turns a framework's own containers into plain ones, whose leaves are captured; with `sets`, items of sets
    and frozensets are captured, too.
    """

    def __init__(
        self, accepts: Callable[[Any], bool], unpack: Callable[[Any], Any] = lambda value: value, *, sets: bool = False
    ) -> None:
        self.values: list[Any] = []  # the captured values, each once
        self.accepts, self._unpack, self._sets = accepts, unpack, sets
        self._places: dict[tuple[int, Any], tuple[Any, Any]] = {}  # by id of the owner and key
        self._indices: dict[int, int] = {}  # by id: the index among `values`

    def add(self, owner: Any, key: Any) -> None:
        """Note a place: `owner[key]`, or `owner` if that is a Reference; None cannot be rebound, and is ignored."""
        if isinstance(owner, SetRef):
            self._places |= {(id(owner.owner), None): (owner, None)} if self._sets else {}
        elif isinstance(owner, Reference):
            self._places.setdefault((id(owner), None), (owner, None))
        elif owner is not None:
            self._places.setdefault((id(owner), key), (owner, key))

    def references(self, path: Callable[[Any, Any], tuple[str, tuple[Any, ...]]]) -> list[CapturedReference]:
        """References to all captured values, which this appends to `values`; `path` gives the name of a place."""
        return [each for place in self._places.values() if (each := self._reference(*place, path)) is not None]

    def _reference(
        self, owner: Any, key: Any, path: Callable[[Any, Any], tuple[str, tuple[Any, ...]]]
    ) -> CapturedReference | None:
        reference = owner if isinstance(owner, Reference) else ItemRef(owner, key)
        leaves, tree = self._flatten_immutable(reference.get())
        indices = [(k, self._index_of(leaf)) for k, leaf in enumerate(leaves) if self.accepts(leaf)]
        if not indices:
            return None
        for k, _ in indices:
            leaves[k] = None
        return CapturedReference(*path(owner, key), reference, tree, tuple(indices), tuple(leaves))

    def _flatten_immutable(self, value: Any) -> tuple[list[Any], TreeDef]:
        """The leaves of tuples, frozensets and the framework's own containers, which can only be rebound as a whole.

        Lists, dicts and objects are leaves here: their items and attributes are references of their own.
        """
        leaves, tree = flatten(value, only=tuple) if isinstance(value, tuple) else ([value], LEAF)
        if not any(self._has_parts(leaf) for leaf in leaves):  # nearly always
            return leaves, tree
        flattened = [self._flatten_leaf(leaf) for leaf in leaves]
        subtrees = iter([subtree for _, subtree in flattened])
        return [leaf for inner_leaves, _ in flattened for leaf in inner_leaves], tree.compose(subtrees)

    def _has_parts(self, leaf: Any) -> bool:
        return isinstance(leaf, frozenset) if not self.accepts(leaf) else self._unpack(leaf) is not leaf

    def _flatten_leaf(self, leaf: Any) -> tuple[list[Any], TreeDef]:
        if self.accepts(leaf):
            return flatten(leaf, self._unpack)
        if isinstance(leaf, frozenset) and self._sets:
            return list(leaf), TreeDef(frozenset, tuple(range(len(leaf))), (LEAF,) * len(leaf))
        return [leaf], LEAF

    def _index_of(self, value: Any) -> int:
        index = self._indices.setdefault(id(value), len(self.values))
        if index == len(self.values):
            self.values.append(value)
        return index
