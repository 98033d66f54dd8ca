"""The frameworks: the only rooms that may import one.

In: the values that a user gives. Out: the room that can differentiate them, found by the types of the leaves; no
framework is imported for its own sake. A framework is one folder here and one line in `ROOMS`.
"""

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, ParamSpec, TypeVar

from remat.closures.capture import BaseCaptureFilter, ConvertedClosure
from remat.errors import StepError
from remat.pytree import flatten

__all__ = ["find_framework", "find_framework_of", "jax_is_tracing", "outside_compilers", "room_named"]

P = ParamSpec("P")
T = TypeVar("T")

# package of a leaf's type → room
ROOMS = {
    "numpy": "remat.frameworks.numpy",
    "autograd": "remat.frameworks.numpy",
    "torch": "remat.frameworks.torch",
    "jax": "remat.frameworks.jax",
}
_KNOWN = {"tensorflow": "TensorFlow", "keras": "Keras"}


def outside_compilers(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run as it is where torch.compile comes upon it: a schedule is no graph to be compiled."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            return torch._dynamo.disable(function)(*args, **kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return run


def room_named(package: str) -> ModuleType:
    """The room for arrays of a package."""
    return import_module(ROOMS[package])


def find_framework(*values: Any, using: Iterable[Any] = ()) -> ModuleType:
    """The room for the leaves of these values; numbers alone are NumPy's, unless JAX traces.

    Where JAX is loaded and the values could be anyone's, they are JAX's if one of the functions in `using` uses an
    array of JAX.
    """
    found = _decided(values)
    if found is None and _jax() is not None and (jax_is_tracing() or _things_used(using, _jax_kinds())):
        found = "jax"
    return room_named(found or "numpy")


def find_framework_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleType:
    """The room for a call: that of its arguments; if these are no traced arrays, that of what the function uses."""
    torch = _torch()
    if torch is not None and args and not kwargs and all(isinstance(each, torch.Tensor) for each in args):
        return room_named("torch")  # the usual case takes no time
    found = _decided((fn, args, kwargs))
    if found is None and jax_is_tracing():
        found = "jax"
    elif found is None and (torch is not None or _jax() is not None):
        torch_kinds = () if torch is None else (torch.Tensor, torch.nn.Module)
        used = _things_used([fn], (*torch_kinds, *_jax_kinds()))
        if used:
            found = "torch" if issubclass(used, torch_kinds) else "jax"
    return room_named(found or "numpy")


def jax_is_tracing() -> bool:
    """Whether the code that asks is run by a transformation of JAX, such as grad, jit or vmap."""
    jax = _jax()
    if jax is None:
        return False
    for name in ("jax.core", "jax._src.core"):  # it is not public in every release
        is_clean = getattr(sys.modules.get(name), "trace_state_clean", None)
        if is_clean is not None:
            return not is_clean()
    return isinstance(jax.numpy.zeros(()), jax.core.Tracer)  # jit's alone, in releases to come


def _decided(values: Any) -> str | None:
    """The framework of leaves that can only be one's; None if there are none, and an error if there are several's."""
    first: dict[str, Any] = {}
    for leaf in flatten(values)[0]:
        found = _owner(leaf)
        if found is not None:
            first.setdefault(found, leaf)
    if "jax" in first and len(first) > 1:
        said = " and ".join(f"one of {_NAMES[name]} ({_kind_of(leaf)})" for name, leaf in first.items())
        raise StepError(
            f"there are arrays of two frameworks, {said}, and no gradient flows from one to the other. Give those of "
            "one; jax.numpy.from_dlpack(tensor) and torch.from_dlpack(array) convert them"
        )
    return "torch" if "torch" in first else next(iter(first), None)


_NAMES = {"jax": "JAX", "torch": "PyTorch", "autograd": "autograd"}


def _owner(leaf: Any) -> str | None:
    """The framework that a leaf belongs to and to no other."""
    kind = type(leaf)
    if kind in _ANYONES or kind.__module__ == "numpy":
        return None
    if _jax() is not None and any(isinstance(each, _jax_kinds()) for each in _parts_for_jax(leaf)):
        return "jax"
    packages = {each.__module__.partition(".")[0] for each in kind.__mro__}
    if "torch" in packages:
        return "torch"
    for package in packages & _KNOWN.keys():
        raise StepError(
            f"{_KNOWN[package]} cannot be run by this release: a leaf is a {package}.{kind.__name__}. "
            "Give NumPy arrays, PyTorch tensors or JAX arrays; remat.plan plans for every framework"
        )
    return "autograd" if _is_box(kind) else None


_ANYONES = frozenset({int, float, bool, complex, str, bytes, type(None)})


def _kind_of(leaf: Any) -> str:
    kind = type(leaf)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _is_box(kind: type) -> bool:
    return any(each.__module__ == "autograd.tracer" and each.__name__ == "Box" for each in kind.__mro__)


def _torch() -> Any:
    """PyTorch, if it is loaded."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "Tensor") else None


def _jax() -> Any:
    """JAX, if it is loaded."""
    jax = sys.modules.get("jax")
    return jax if jax is not None and hasattr(jax, "Array") and hasattr(jax, "core") else None


def _jax_kinds() -> tuple[type, ...]:
    jax = _jax()
    return () if jax is None else (jax.Array, jax.core.Tracer)


def _parts_for_jax(leaf: Any) -> list[Any]:
    """The leaf, or what is in it if it is a container that only JAX knows."""
    jax = _jax()
    if isinstance(leaf, _jax_kinds()) or type(leaf).__module__.partition(".")[0] in ("numpy", "torch", "autograd"):
        return [leaf]
    return jax.tree_util.tree_leaves(leaf)  # type: ignore[no-any-return]


def _things_used(functions: Iterable[Any], kinds: tuple[type, ...]) -> type | None:
    """The kind of the first thing of these kinds that the functions use."""
    things = _Things(kinds)
    for function in functions:
        if things.found is None:
            ConvertedClosure(things, function)
    return things.found


class _Things(BaseCaptureFilter):
    """Looks in closures for anything of some kinds; see `execute.captured.Boxes`."""

    opaque_types: ClassVar[tuple[type, ...]] = ()
    atomic_types: ClassVar[frozenset[type]] = frozenset()

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self.found: type | None = None
        self._kinds = kinds

    def accepts(self, leaf: Any) -> bool:
        self.visit(leaf, "")
        return False

    def visit(self, value: Any, name: str) -> None:
        if self.found is None and isinstance(value, self._kinds):
            self.found = type(value)
