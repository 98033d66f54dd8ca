"""Nested containers, taken apart and put together: tuples, named tuples, lists, dicts, dataclasses, None.

In: a value as users write it. Out: its leaves in order, and a `Tree` that puts leaves back and names them. What counts
as a leaf is everything else; the frameworks decide which leaves they can use.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

__all__ = ["LEAF", "Mismatch", "Tree", "take_apart"]


class Mismatch(Exception):
    """A value has another structure than expected; says where and how."""


@dataclass(frozen=True)
class Tree:
    """The structure of a value: the container's type and keys, and the trees below; a leaf has no type.

    >>> leaves, tree = take_apart({"h": 1.0, "c": (2.0, None)})
    >>> leaves, list(tree.names("carry"))
    ([1.0, 2.0], ["carry['h']", "carry['c'][0]"])
    >>> tree.build([10, 20])
    {'h': 10, 'c': (20, None)}
    """

    kind: Any = None
    keys: tuple[Any, ...] = ()
    below: tuple["Tree", ...] = ()
    extra: dict[str, Any] | None = field(default=None, compare=False, repr=False)  # more attributes of a dataclass

    @cached_property
    def mutable(self) -> bool:
        """Whether a container in it can be changed in place: all but tuples and None."""
        fixed = self.kind in (None, type(None)) or (isinstance(self.kind, type) and issubclass(self.kind, tuple))
        return not fixed or any(tree.mutable for tree in self.below)

    @cached_property
    def size(self) -> int:
        """How many leaves there are."""
        return 1 if self.kind is None else sum(tree.size for tree in self.below)

    def build(self, leaves: Sequence[Any]) -> Any:
        """The value with these leaves."""
        if self.kind is None:
            return leaves[0]
        return self._build(iter(leaves))

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        value = _put_together(self.kind, self.keys, [tree._build(leaves) for tree in self.below])
        for name, held in (self.extra or {}).items():
            object.__setattr__(value, name, held)
        return value

    def apart(
        self, value: Any, name: str, unpack: Callable[[Any], Any] | None = None, *, gaps: bool = False
    ) -> list[Any]:
        """The leaves of a value that has this structure; another structure raises a Mismatch that says where.

        With `gaps`, None may stand for any part, and each of its leaves is None.
        """
        leaves: list[Any] = []
        if not self._quick(value, unpack, leaves):  # names are only made when something is unusual
            leaves = []
            self._apart(value, name, unpack, leaves, gaps)
        return leaves

    def _quick(self, value: Any, unpack: Callable[[Any], Any] | None, leaves: list[Any]) -> bool:
        """Whether the value has this structure, with the very same types; then its leaves are added."""
        kind = self.kind
        if kind is None:
            leaves.append(value)
            return type(value) in _leaf_types or _learn_leaf_type(value, unpack)
        if type(value) is not kind:
            return False
        if kind is tuple or kind is list:
            parts: Iterable[Any] = value
        elif kind is dict:
            if len(value) != len(self.keys) or not all(key in value for key in self.keys):
                return False
            parts = (value[key] for key in self.keys)
        elif issubclass(kind, tuple):
            parts = value
        else:
            return kind is type(None)  # dataclasses and others go the slow way
        count = 0
        for tree, part in zip(self.below, parts, strict=False):
            if not tree._quick(part, unpack, leaves):
                return False
            count += 1
        return count == len(self.below) and (kind is dict or len(value) == count)

    def _apart(self, value: Any, name: str, unpack: Callable[[Any], Any] | None, leaves: list[Any], gaps: bool) -> None:
        if gaps and value is None:
            leaves.extend([None] * self.size)
            return
        if unpack is not None:
            value = unpack(value)
        found = _contents(value)
        if found is None and self.kind is None:
            leaves.append(value)
            return
        kind, keys = (None, ()) if found is None else (found[0], tuple(found[1]))
        if (
            found is None
            or _name_of(kind) != _name_of(self.kind)
            or (keys != self.keys and set(keys) != set(self.keys))
        ):
            raise Mismatch(f"{name} was {self.describe()} and became {_describe(kind, keys, value)}")
        for key, tree in zip(self.keys, self.below, strict=True):
            tree._apart(found[1][key], name + _suffix(self.kind, key), unpack, leaves, gaps)

    def mapped(self, function: Callable[[Any], Any], value: Any) -> Any:
        """A value of this structure with each leaf replaced by what the function makes of it."""
        return self.build([function(leaf) for leaf in self.apart(value, "value")])

    def grafted(self, trees: Iterator["Tree"]) -> "Tree":
        """The same structure with the next of these trees for each leaf."""
        if self.kind is None:
            return next(trees)
        return replace(self, below=tuple(tree.grafted(trees) for tree in self.below))

    def names(self, name: str) -> Iterator[str]:
        """A name for each leaf, as one would write it in Python."""
        if self.kind is None:
            yield name
        for key, tree in zip(self.keys, self.below, strict=True):
            yield from tree.names(name + _suffix(self.kind, key))

    def describe(self) -> str:
        """The outermost container in words."""
        return _describe(self.kind, self.keys, None)


LEAF = Tree()
_leaf_types: set[type] = set()  # of leaves that no framework unpacks


def _learn_leaf_type(value: Any, unpack: Callable[[Any], Any] | None) -> bool:
    if unpack is None or unpack(value) is not value or _contents(value) is not None:
        return False
    _leaf_types.add(type(value))
    return True


def take_apart(
    value: Any, unpack: Callable[[Any], Any] | None = None, *, only: type = object
) -> tuple[list[Any], Tree]:
    """The leaves of a value and its tree; `unpack` turns a framework's own containers into plain ones.

    Containers that are no `only` are leaves.
    """
    leaves: list[Any] = []
    return leaves, _take_apart(value, unpack, only, leaves)


def _take_apart(value: Any, unpack: Callable[[Any], Any] | None, only: type, leaves: list[Any]) -> Tree:
    if unpack is not None and only is object:
        value = unpack(value)
    found = _contents(value) if isinstance(value, only) else None
    if found is None:
        leaves.append(value)
        return LEAF
    kind, contents = found
    below = tuple(_take_apart(part, unpack, only, leaves) for part in contents.values())
    return Tree(kind, tuple(contents), below, _extra(value, contents) if is_dataclass(value) else None)


def _extra(value: Any, contents: dict[str, Any]) -> dict[str, Any] | None:
    """Attributes of a dataclass that are no fields, and no caches of what is made from fields."""
    held = getattr(value, "__dict__", {}).items()
    kind = type(value)
    return {
        k: v for k, v in held if k not in contents and not isinstance(getattr(kind, k, None), cached_property)
    } or None


def _contents(value: Any) -> tuple[Any, dict[Any, Any]] | None:
    """What a container is, and its parts by key; None for a leaf. A kind of its own: a default dict has a factory."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind, dict(enumerate(value))
    if value is None:
        return kind, {}
    if kind is dict or kind is OrderedDict:
        return kind, dict(value)
    if kind is defaultdict:
        return (kind, value.default_factory), dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind, dict(zip(value._fields, value, strict=True))
    if is_dataclass(value) and not isinstance(value, type):
        return kind, {item.name: getattr(value, item.name) for item in fields(value)}
    return None


def _put_together(kind: Any, keys: tuple[Any, ...], parts: list[Any]) -> Any:
    if kind is tuple:
        return tuple(parts)
    if kind is list:
        return parts
    if kind is type(None):
        return None
    if isinstance(kind, tuple):
        return defaultdict(kind[1], zip(keys, parts, strict=True))
    if issubclass(kind, dict):
        return kind(zip(keys, parts, strict=True))
    if issubclass(kind, tuple):
        return kind._make(parts)
    value = object.__new__(kind)  # a dataclass; its __init__ may refuse what stands for an array while it is traced
    for key, part in zip(keys, parts, strict=True):
        object.__setattr__(value, key, part)
    return value


def _suffix(kind: Any, key: Any) -> str:
    return f"[{key!r}]" if isinstance(kind, tuple) or issubclass(kind, dict) or kind in (tuple, list) else f".{key}"


def _name_of(kind: Any) -> str | None:
    """A container's type by name: an ordered and a default dict may stand for a dict."""
    if kind is None:
        return None
    if isinstance(kind, tuple) or issubclass(kind, dict):
        return "dict"
    return f"{kind.__module__}.{kind.__qualname__}"


def _describe(kind: Any, keys: tuple[Any, ...], value: Any) -> str:
    if kind is None:
        return "an array or a number" if value is None else f"a single {type(value).__name__}"
    if kind is type(None):
        return "None"
    if kind in (tuple, list):
        return f"a {kind.__name__} of {len(keys)}"
    shown = ", ".join(map(str, keys[:6])) + (", …" if len(keys) > 6 else "")
    return f"a {_name_of(kind).rpartition('.')[2]} with {shown or 'nothing'}"  # type: ignore[union-attr]
