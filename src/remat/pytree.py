"""Nested containers, taken apart and put together: tuples, named tuples, lists, dicts, dataclasses, None.

In: a value as users write it. Out: its leaves in order, and a `TreeDef` that puts leaves back and gives each its path.
Everything else is a leaf; the frameworks decide which leaves they can use.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

__all__ = ["LEAF", "StructureMismatch", "TreeDef", "flatten"]


class StructureMismatch(Exception):
    """A value has another structure than expected; says where and how."""


@dataclass(frozen=True)
class TreeDef:
    """The structure of a value: the container's type and keys, and the trees children; a leaf has no type.

    >>> leaves, tree = take_apart({"h": 1.0, "c": (2.0, None)})
    >>> leaves, list(tree.paths("carry"))
    ([1.0, 2.0], ["carry['h']", "carry['c'][0]"])
    >>> tree.unflatten([10, 20])
    {'h': 10, 'c': (20, None)}
    """

    node_type: Any = None
    keys: tuple[Any, ...] = ()
    children: tuple["TreeDef", ...] = ()
    attributes: dict[str, Any] | None = field(default=None, compare=False, repr=False)  # more attributes of a dataclass

    @cached_property
    def mutable(self) -> bool:
        """Whether a container in it can be changed in place: all but tuples and None."""
        fixed = self.node_type in (None, type(None)) or (
            isinstance(self.node_type, type) and issubclass(self.node_type, tuple)
        )
        return not fixed or any(tree.mutable for tree in self.children)

    @cached_property
    def size(self) -> int:
        """How many leaves there are."""
        return 1 if self.node_type is None else sum(tree.size for tree in self.children)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value with these leaves."""
        if self.node_type is None:
            return leaves[0]
        return self._unflatten(iter(leaves))

    def _unflatten(self, leaves: Iterator[Any]) -> Any:
        if self.node_type is None:
            return next(leaves)
        value = _make_container(self.node_type, self.keys, [tree._unflatten(leaves) for tree in self.children])
        for name, held in (self.attributes or {}).items():
            object.__setattr__(value, name, held)
        return value

    def flatten_like(
        self, value: Any, name: str, unpack: Callable[[Any], Any] | None = None, *, allow_none: bool = False
    ) -> list[Any]:
        """The leaves of a value that has this structure; another structure raises a Mismatch that says where.

        With `allow_none`, None may stand for any part, and each of its leaves is None.
        """
        leaves: list[Any] = []
        if not self._flatten_fast(value, unpack, leaves):  # names are only made when something is unusual
            leaves = []
            self._flatten_like(value, name, unpack, leaves, allow_none)
        return leaves

    def _flatten_fast(self, value: Any, unpack: Callable[[Any], Any] | None, leaves: list[Any]) -> bool:
        """Whether the value has this structure, with the very same types; then its leaves are added."""
        node_type = self.node_type
        if node_type is None:
            leaves.append(value)
            return type(value) in _leaf_types or _learn_leaf_type(value, unpack)
        if type(value) is not node_type:
            return False
        if node_type is tuple or node_type is list:
            parts: Iterable[Any] = value
        elif node_type is dict:
            if len(value) != len(self.keys) or not all(key in value for key in self.keys):
                return False
            parts = (value[key] for key in self.keys)
        elif issubclass(node_type, tuple):
            parts = value
        else:
            return node_type is type(None)  # dataclasses and others go the slow way
        count = 0
        for tree, part in zip(self.children, parts, strict=False):
            if not tree._flatten_fast(part, unpack, leaves):
                return False
            count += 1
        return count == len(self.children) and (node_type is dict or len(value) == count)

    def _flatten_like(
        self, value: Any, name: str, unpack: Callable[[Any], Any] | None, leaves: list[Any], allow_none: bool
    ) -> None:
        if allow_none and value is None:
            leaves.extend([None] * self.size)
            return
        if unpack is not None:
            value = unpack(value)
        found = _contents(value)
        if found is None and self.node_type is None:
            leaves.append(value)
            return
        node_type, keys = (None, ()) if found is None else (found[0], tuple(found[1]))
        if (
            found is None
            or _name_of(node_type) != _name_of(self.node_type)
            or (keys != self.keys and set(keys) != set(self.keys))
        ):
            raise StructureMismatch(f"{name} was {self.describe()} and became {_describe(node_type, keys, value)}")
        for key, tree in zip(self.keys, self.children, strict=True):
            tree._flatten_like(found[1][key], name + _suffix(self.node_type, key), unpack, leaves, allow_none)

    def map(self, function: Callable[[Any], Any], value: Any) -> Any:
        """A value of this structure with each leaf replaced by what the function makes of it."""
        return self.unflatten([function(leaf) for leaf in self.flatten_like(value, "value")])

    def compose(self, trees: Iterator["TreeDef"]) -> "TreeDef":
        """The same structure with the next of these trees for each leaf."""
        if self.node_type is None:
            return next(trees)
        return replace(self, children=tuple(tree.compose(trees) for tree in self.children))

    def paths(self, name: str) -> Iterator[str]:
        """A name for each leaf, as one would write it in Python."""
        if self.node_type is None:
            yield name
        for key, tree in zip(self.keys, self.children, strict=True):
            yield from tree.paths(name + _suffix(self.node_type, key))

    def describe(self) -> str:
        """The outermost container in words."""
        return _describe(self.node_type, self.keys, None)


LEAF = TreeDef()
_leaf_types: set[type] = set()  # of leaves that no framework unpacks


def _learn_leaf_type(value: Any, unpack: Callable[[Any], Any] | None) -> bool:
    if unpack is None or unpack(value) is not value or _contents(value) is not None:
        return False
    _leaf_types.add(type(value))
    return True


def flatten(
    value: Any, unpack: Callable[[Any], Any] | None = None, *, only: type = object
) -> tuple[list[Any], TreeDef]:
    """The leaves of a value and its tree; `unpack` turns a framework's own containers into plain ones.

    Containers that are no `only` are leaves.
    """
    leaves: list[Any] = []
    return leaves, _flatten_into(value, unpack, only, leaves)


def _flatten_into(value: Any, unpack: Callable[[Any], Any] | None, only: type, leaves: list[Any]) -> TreeDef:
    if unpack is not None and only is object:
        value = unpack(value)
    found = _contents(value) if isinstance(value, only) else None
    if found is None:
        leaves.append(value)
        return LEAF
    node_type, contents = found
    children = tuple(_flatten_into(part, unpack, only, leaves) for part in contents.values())
    return TreeDef(node_type, tuple(contents), children, _attributes(value, contents) if is_dataclass(value) else None)


def _attributes(value: Any, contents: dict[str, Any]) -> dict[str, Any] | None:
    """Attributes of a dataclass that are no fields, and no caches of what is made from fields."""
    held = getattr(value, "__dict__", {}).items()
    node_type = type(value)
    return {
        k: v for k, v in held if k not in contents and not isinstance(getattr(node_type, k, None), cached_property)
    } or None


def _contents(value: Any) -> tuple[Any, dict[Any, Any]] | None:
    """A container's type and its children by key; None for a leaf. A default dict's type includes its factory."""
    node_type = type(value)
    if node_type is tuple or node_type is list:
        return node_type, dict(enumerate(value))
    if value is None:
        return node_type, {}
    if node_type is dict or node_type is OrderedDict:
        return node_type, dict(value)
    if node_type is defaultdict:
        return (node_type, value.default_factory), dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return node_type, dict(zip(value._fields, value, strict=True))
    if is_dataclass(value) and not isinstance(value, type):
        return node_type, {item.name: getattr(value, item.name) for item in fields(value)}
    return None


def _make_container(node_type: Any, keys: tuple[Any, ...], parts: list[Any]) -> Any:
    if node_type is tuple:
        return tuple(parts)
    if node_type is list:
        return parts
    if node_type is type(None):
        return None
    if isinstance(node_type, tuple):
        return defaultdict(node_type[1], zip(keys, parts, strict=True))
    if issubclass(node_type, dict):
        return node_type(zip(keys, parts, strict=True))
    if issubclass(node_type, tuple):
        return node_type._make(parts)
    value = object.__new__(
        node_type
    )  # a dataclass; its __init__ may refuse what stands for an array while it is traced
    for key, part in zip(keys, parts, strict=True):
        object.__setattr__(value, key, part)
    return value


def _suffix(node_type: Any, key: Any) -> str:
    return (
        f"[{key!r}]"
        if isinstance(node_type, tuple) or issubclass(node_type, dict) or node_type in (tuple, list)
        else f".{key}"
    )


def _name_of(node_type: Any) -> str | None:
    """A container's type by name: an ordered and a default dict may stand for a dict."""
    if node_type is None:
        return None
    if isinstance(node_type, tuple) or issubclass(node_type, dict):
        return "dict"
    return f"{node_type.__module__}.{node_type.__qualname__}"


def _describe(node_type: Any, keys: tuple[Any, ...], value: Any) -> str:
    if node_type is None:
        return "an array or a number" if value is None else f"a single {type(value).__name__}"
    if node_type is type(None):
        return "None"
    if node_type in (tuple, list):
        return f"a {node_type.__name__} of {len(keys)}"
    shown = ", ".join(map(str, keys[:6])) + (", …" if len(keys) > 6 else "")
    return f"a {_name_of(node_type).rpartition('.')[2]} with {shown or 'nothing'}"  # type: ignore[union-attr]
