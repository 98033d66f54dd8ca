"""The registry, which picks the framework of a call.

In: the values and functions that a user passes. Out: the `Framework` that can differentiate them, decided by the types
of their leaves. Only frameworks whose package is already imported are considered; the registry itself never imports
one.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

from remat.closures.reach import Reach
from remat.closures.references import exclusive
from remat.errors import StepError
from remat.frameworks.framework_protocol import Framework
from remat.pytree import Leaf, PyTree, reached_leaves

__all__ = ["find_framework", "find_framework_of_call", "framework_of_module", "load_framework", "register"]


class _Entry(NamedTuple):
    package: str  # the package that defines its arrays
    attribute: str  # an attribute that exists once the package is fully imported: its array type, if it has one
    module: str  # our module for it


# To add a framework, add its line here. Where arrays of two frameworks meet, the one listed first is used.
REGISTRY = [
    _Entry("torch", "Tensor", "remat.frameworks.torch"),
    _Entry("jax", "Array", "remat.frameworks.jax"),
    _Entry("autograd", "grad", "remat.frameworks.numpy"),
]
DEFAULT = "autograd"  # plain arrays and numbers may belong to any framework, and to this one if nothing else decides
UNSUPPORTED = {"tensorflow": "TensorFlow", "keras": "Keras"}
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_ANYONES = frozenset({int, float, bool, complex, str, bytes, type(None)})


def register(package: str, attribute: str, module: str) -> None:
    """Add a framework that is not part of remat; `module` names a module that satisfies `Framework`."""
    REGISTRY.append(_Entry(package, attribute, module))


def load_framework(package: str) -> Framework:
    """The framework for arrays of a package."""
    entry = next(entry for entry in REGISTRY if entry.package == package)
    return cast(Framework, import_module(entry.module))


def find_framework(*values: PyTree, using: Iterable[Callable[..., object]] = ()) -> Framework:
    """The framework that owns the leaves of these values.

    If no leaf decides, it is the framework that is tracing the calling code, then one that decides by what the
    functions in `using` capture or whose modules they name, then NumPy.
    """
    owner = _owner_of_values(values) or _tracing()
    owner = owner or _owner_of_captures(using, "decides_loops") or _owner_of_modules(using)
    return owner or load_framework(DEFAULT)


def find_framework_of_call(fn: Callable[..., object], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Framework:
    """The framework of a call, decided by its arguments, by a trace, or by what the function captures; else NumPy."""
    if args and not kwargs:  # fast path: all arguments are arrays of one framework
        first = _OWNERS.get(type(args[0]))
        decides = first is not None and (isinstance(fn, _FUNCTIONS) or first.is_module(fn))
        if first is not None and decides and all(_OWNERS.get(type(arg)) is first for arg in args):
            return first
    owner = _owner_of_values((fn, args, kwargs)) or _tracing()
    return owner or _owner_of_captures([fn], "decides_segments") or load_framework(DEFAULT)


def framework_of_module(fn: object) -> Framework | None:
    """The framework whose module this is, or None for a plain function."""
    return next((framework for framework in _loaded() if framework.is_module(fn)), None)


def _loaded() -> Iterator[Framework]:
    """The frameworks whose packages are imported.

    A framework that remat cannot use, such as too old a release, is left out unless one of its arrays is passed, so
    that it does not get in the way of the others.
    """
    for entry in REGISTRY:
        framework = _FRAMEWORKS.get(entry.module)
        if framework is None and hasattr(sys.modules.get(entry.package), entry.attribute):
            framework = _try_to_load(entry.module)
        if framework is not None:
            yield framework


_FRAMEWORKS: dict[str, Framework] = {}  # by the name of our module for the framework
_UNUSABLE: set[str] = set()


def _try_to_load(module: str) -> Framework | None:
    if module not in _UNUSABLE:
        try:
            _FRAMEWORKS[module] = cast(Framework, import_module(module))
        except ImportError:
            _UNUSABLE.add(module)
    return _FRAMEWORKS.get(module)


def _raise_if_unusable(leaf: object) -> None:
    """Raise the ImportError of an unusable framework if the leaf is one of its arrays."""
    for entry in REGISTRY:
        array_type = getattr(sys.modules.get(entry.package), entry.attribute, None)
        if entry.module in _UNUSABLE and isinstance(array_type, type) and isinstance(leaf, array_type):
            import_module(entry.module)


def _tracing() -> Framework | None:
    return next((framework for framework in _loaded() if framework.is_tracing()), None)


def _owner_of_values(values: PyTree) -> Framework | None:
    """The framework whose arrays are among the leaves; None without any, an error if two do not mix."""
    first_leaves: dict[str, Leaf] = {}
    owners: dict[str, Framework] = {}
    for leaf in reached_leaves(values):
        owner = _owner(leaf)
        if owner is not None:
            owners[owner.TRAITS.name] = owner
            first_leaves.setdefault(owner.TRAITS.name, leaf)
    if len(owners) > 1 and not all(owner.TRAITS.mixes for owner in owners.values()):
        raise _mixed(owners, first_leaves)
    return next((framework for framework in _loaded() if framework.TRAITS.name in owners), None) if owners else None


def _mixed(owners: dict[str, Framework], first_leaves: dict[str, Leaf]) -> StepError:
    described = [f"one of {owners[name].TRAITS.title} ({_type_name(leaf)})" for name, leaf in first_leaves.items()]
    conversions = [owner.TRAITS.conversion for owner in owners.values() if owner.TRAITS.conversion]
    return StepError(
        f"there are arrays of two frameworks, {' and '.join(described)}, and no gradient flows from one to the other. "
        f"Give arrays of one framework; {' and '.join(conversions)} convert{'s' * (len(conversions) == 1)} them"
    )


_OWNERS: MutableMapping[type, Framework] = WeakKeyDictionary()  # by array type


def _owner(leaf: object) -> Framework | None:
    """The framework that a leaf belongs to; None if it could belong to any."""
    leaf_type = type(leaf)
    if leaf_type in _ANYONES or leaf_type.__module__ == "numpy":
        return None
    owner = _OWNERS.get(leaf_type)
    if owner is not None:
        return owner
    for framework in _loaded():
        if isinstance(leaf, framework.TRAITS.array_types):
            _OWNERS[leaf_type] = framework
            return framework
    owner = next((framework for framework in _loaded() if framework.owns(leaf)), None)
    if owner is None:
        _raise_if_unusable(leaf)
        for package in {base.__module__.partition(".")[0] for base in leaf_type.__mro__} & UNSUPPORTED.keys():
            raise StepError(
                f"{UNSUPPORTED[package]} cannot be run by this release: a leaf is a {package}.{leaf_type.__name__}. "
                "Give NumPy arrays, PyTorch tensors or JAX arrays; remat.plan plans for every framework, and "
                "remat.keras.recompute recomputes Keras models"
            )
    return owner


def _type_name(leaf: object) -> str:
    leaf_type = type(leaf)
    return f"{leaf_type.__module__.partition('.')[0]}.{leaf_type.__name__}"


def _owner_of_captures(functions: Iterable[Callable[..., object]], trait: str) -> Framework | None:
    """The framework that claims, by this trait, the first value of a claimed type that a function captures."""
    candidates: list[tuple[Framework, tuple[type, ...]]] = [(each, getattr(each.TRAITS, trait)) for each in _loaded()]
    types = tuple(each for _, its_types in candidates for each in its_types)
    if not types:
        return None
    search = _FirstOfTypes(types)
    for function in functions:
        if search.first is None:
            with exclusive():
                search.add([function], everything=True)
    if search.first is None:
        return None
    return next(framework for framework, its_types in candidates if issubclass(search.first, its_types))


def _owner_of_modules(functions: Iterable[Callable[..., object]]) -> Framework | None:
    """A framework whose functions take numbers and NumPy arrays, if a function names one of its modules.

    So `scan(lambda x, _: (jnp.sin(x), None), 1.0, ...)` runs on JAX.
    """
    candidates = {each.TRAITS.name: each for each in _loaded() if each.TRAITS.has_scan_options}
    if not candidates:
        return None
    packages = {package for function in functions for package in _named_packages(function)}
    found = [candidates[name] for name in candidates.keys() & packages]
    return found[0] if found and DEFAULT not in packages else None


def _named_packages(function: object) -> Iterator[str]:
    """The packages of the modules and functions that the code of a function names."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if isinstance(function, FunctionType):
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        for value in (*map(function.__globals__.get, function.__code__.co_names), *cells):
            home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            yield str(home).partition(".")[0]


class _FirstOfTypes(Reach):
    """A search that remembers the type of the first captured value that has one of the given types."""

    def __init__(self, types: tuple[type, ...]) -> None:
        super().__init__()
        self.first: type | None = None
        self.taken = types

    def take(self, value: object, owner: object, key: object) -> None:
        self.first = self.first or type(value)
