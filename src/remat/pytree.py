"""Pytrees: nested tuples, named tuples, lists, dicts, dataclasses and None, flattened and unflattened.

Flattening a value gives its leaves in order, and a `TreeDef` that rebuilds the value and names each leaf by its path.
Anything that is not a container is a leaf; the frameworks decide which leaves they accept. JAX's pytrees are not used
because loops on NumPy and PyTorch must not import JAX, and need paths for messages and a fast check in every step.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

__all__ = ["LEAF", "Leaf", "PyTree", "StructureMismatch", "TreeDef", "flatten", "reached_leaves"]

# Python has no stricter type: each framework has its own arrays, and containers nest in any way.
Leaf: TypeAlias = Any  # an array, a number, or anything else that is not a container
PyTree: TypeAlias = Any  # leaves in nested containers


class StructureMismatch(Exception):
    """A value does not have the expected structure; the message says where and how."""


@dataclass(frozen=True)
class TreeDef:
    """The structure of a value: the container's type, its keys, and the structure of each child.

    >>> leaves, tree = flatten({"h": 1.0, "c": (2.0, None)})
    >>> leaves, list(tree.paths("carry"))
    ([1.0, 2.0], ["carry['h']", "carry['c'][0]"])
    >>> tree.unflatten([10, 20])
    {'h': 10, 'c': (20, None)}
    """

    node_type: Any = None  # None for a leaf, NoneType for None, (defaultdict, factory) for a defaultdict
    keys: tuple[Any, ...] = ()
    children: tuple["TreeDef", ...] = ()
    attributes: dict[str, Any] | None = field(
        default=None, compare=False, repr=False
    )  # attributes of a dataclass that are not fields

    @cached_property
    def mutable(self) -> bool:
        """Whether any of its containers can be changed in place: all but tuples and None can."""
        immutable = self.node_type in (None, type(None)) or (
            isinstance(self.node_type, type) and issubclass(self.node_type, tuple)
        )
        return not immutable or any(tree.mutable for tree in self.children)

    @cached_property
    def size(self) -> int:
        """The number of leaves."""
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
        for name, attribute in (self.attributes or {}).items():
            object.__setattr__(value, name, attribute)  # works on frozen dataclasses too
        return value

    def flatten_like(
        self, value: Any, name: str, unpack: Callable[[Any], Any] | None = None, *, allow_none: bool = False
    ) -> list[Any]:
        """The leaves of a value with this structure; raise a StructureMismatch that names the path below `name` if not.

        With `allow_none`, None may replace any subtree; all leaves of that subtree are then None.
        """
        leaves: list[Any] = []
        # Called in every step: the common case builds no paths, and the slow path handles the rest and the messages.
        if not self._flatten_fast(value, unpack, leaves):
            leaves = []
            self._flatten_like(value, name, unpack, leaves, allow_none)
        return leaves

    def _flatten_fast(self, value: Any, unpack: Callable[[Any], Any] | None, leaves: list[Any]) -> bool:
        """Append the leaves and return True if the value has exactly this structure and these types."""
        node_type = self.node_type
        if node_type is None:
            leaves.append(value)
            return type(value) in _leaf_types or _learn_leaf_type(value, unpack)
        if type(value) is not node_type:
            return False
        if node_type is tuple or node_type is list:
            children: Iterable[Any] = value
        elif node_type is dict:
            if len(value) != len(self.keys) or not all(key in value for key in self.keys):
                return False
            children = (value[key] for key in self.keys)
        elif issubclass(node_type, tuple):
            children = value
        else:
            return node_type is type(None)  # dataclasses and dict subclasses take the slow path
        count = 0
        for tree, child in zip(self.children, children, strict=False):
            if not tree._flatten_fast(child, unpack, leaves):
                return False
            count += 1
        return count == len(self.children) and (node_type is dict or len(value) == count)

    # The slow path: it accepts other kinds of dicts and other key orders, and builds paths for messages.
    def _flatten_like(
        self, value: Any, name: str, unpack: Callable[[Any], Any] | None, leaves: list[Any], allow_none: bool
    ) -> None:
        if allow_none and value is None:
            leaves.extend([None] * self.size)
            return
        if unpack is not None:
            value = unpack(value)
        container = _contents(value)
        if container is None and self.node_type is None:
            leaves.append(value)
            return
        node_type, keys = (None, ()) if container is None else (container[0], tuple(container[1]))
        if (
            container is None
            or _name_of(node_type) != _name_of(self.node_type)
            or (keys != self.keys and set(keys) != set(self.keys))
        ):
            raise StructureMismatch(f"{name} was {self.describe()} and became {_describe(node_type, keys, value)}")
        for key, tree in zip(self.keys, self.children, strict=True):
            tree._flatten_like(container[1][key], name + _suffix(self.node_type, key), unpack, leaves, allow_none)

    def map(self, function: Callable[[Any], Any], value: Any) -> Any:
        """The value, which has this structure, with the function applied to each leaf."""
        return self.unflatten([function(leaf) for leaf in self.flatten_like(value, "value")])

    def compose(self, trees: Iterator["TreeDef"]) -> "TreeDef":
        """This structure with each leaf replaced by the next tree."""
        if self.node_type is None:
            return next(trees)
        return replace(self, children=tuple(tree.compose(trees) for tree in self.children))

    def paths(self, name: str) -> Iterator[str]:
        """The path of each leaf below `name`, as a Python expression."""
        if self.node_type is None:
            yield name
        for key, tree in zip(self.keys, self.children, strict=True):
            yield from tree.paths(name + _suffix(self.node_type, key))

    def describe(self) -> str:
        """Words for the outermost container, for messages."""
        return _describe(self.node_type, self.keys, None)


LEAF = TreeDef()
_leaf_types: set[type] = set()  # types known to be leaves: their values are not unpacked and tested again


def _learn_leaf_type(value: Any, unpack: Callable[[Any], Any] | None) -> bool:
    """Whether a value is a leaf after unpacking; if so, remember its type."""
    if unpack is None or unpack(value) is not value or _contents(value) is not None:
        return False
    _leaf_types.add(type(value))
    return True


def flatten(
    value: Any, unpack: Callable[[Any], Any] | None = None, *, only: type = object
) -> tuple[list[Any], TreeDef]:
    """The leaves of a value and its structure; `unpack` turns a framework's containers into plain ones.

    With `only`, containers that are not instances of it count as leaves.
    """
    leaves: list[Any] = []
    return leaves, _flatten_into(value, unpack, only, leaves)


def _flatten_into(value: Any, unpack: Callable[[Any], Any] | None, only: type, leaves: list[Any]) -> TreeDef:
    # Segments flatten their arguments and results in every call, so leaves and tuples have a short path.
    if type(value) in _leaf_types:
        leaves.append(value)
        return LEAF
    if unpack is not None and only is object:
        value = unpack(value)
    if type(value) is tuple:
        children = tuple([_flatten_into(child, unpack, only, leaves) for child in value])
        return TreeDef(tuple, tuple(range(len(children))), children)
    container = _contents(value) if isinstance(value, only) else None
    if container is None:
        leaves.append(value)
        _learn_leaf_type(value, unpack)
        return LEAF
    node_type, contents = container
    children = tuple(_flatten_into(child, unpack, only, leaves) for child in contents.values())
    return TreeDef(node_type, tuple(contents), children, _attributes(value, contents) if is_dataclass(value) else None)


def reached_leaves(value: Any, unpack: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """The leaves of a value, in any order; containers may lead to themselves, and each is looked at once."""
    stack: list[Any] = [value]
    seen: dict[int, Any] = {}
    while stack:
        part = stack.pop()
        if type(part) in _leaf_types:
            yield part
            continue
        if id(part) in seen:
            continue
        seen[id(part)] = part  # held, so that no other object gets its id
        container = _contents(part if unpack is None else unpack(part))
        if container is None:
            yield part
        else:
            stack += reversed(container[1].values())


def _attributes(value: Any, contents: dict[str, Any]) -> dict[str, Any] | None:
    """The attributes of a dataclass that are not fields, except cached properties, which depend on fields."""
    node_type = type(value)
    return {
        name: attribute
        for name, attribute in getattr(value, "__dict__", {}).items()
        if name not in contents and not isinstance(getattr(node_type, name, None), cached_property)
    } or None


def _contents(value: Any) -> tuple[Any, dict[Any, Any]] | None:
    """A container's type, as in `TreeDef.node_type`, and its children by key; None for a leaf."""
    node_type = type(value)
    if node_type is tuple or node_type is list:
        return node_type, dict(enumerate(value))
    if value is None:
        return node_type, {}
    # Other mappings are leaves: their constructors may need arguments that are unknown when they are rebuilt.
    if node_type is dict or node_type is OrderedDict:
        return node_type, dict(value)
    if node_type is defaultdict:
        return (node_type, value.default_factory), dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # named tuples have no common base class
        return node_type, dict(zip(value._fields, value, strict=True))
    if is_dataclass(value) and not isinstance(value, type):
        return node_type, {item.name: getattr(value, item.name) for item in fields(value)}
    return None


def _make_container(node_type: Any, keys: tuple[Any, ...], children: list[Any]) -> Any:
    if node_type is tuple:
        return tuple(children)
    if node_type is list:
        return children
    if node_type is frozenset:  # only the search in closures makes such nodes, since items of a set have no order
        return frozenset(children)
    if node_type is type(None):
        return None
    if isinstance(node_type, tuple):
        return defaultdict(node_type[1], zip(keys, children, strict=True))
    if issubclass(node_type, dict):
        return node_type(zip(keys, children, strict=True))
    if issubclass(node_type, tuple):
        return node_type._make(children)
    # A dataclass. Its __init__ is not called, because it might convert or reject tracers in the place of arrays.
    value = object.__new__(node_type)
    for key, child in zip(keys, children, strict=True):
        object.__setattr__(value, key, child)
    return value


def _suffix(node_type: Any, key: Any) -> str:
    """The suffix that a key adds to the path of its container: an index or an attribute access."""
    return (
        f"[{key!r}]"
        if isinstance(node_type, tuple) or issubclass(node_type, dict) or node_type in (tuple, list)
        else f".{key}"
    )


def _name_of(node_type: Any) -> str | None:
    """The name by which container types are compared; all kinds of dicts are "dict"."""
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
