"""The frameworks: the only rooms that may import one.

In: the values that a user gives. Out: the room that can differentiate them, found by the types of the leaves; no
framework is imported for its own sake. A framework is one folder here and one line in `ROOMS`.
"""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, ParamSpec, TypeVar

from remat.errors import StepError
from remat.execute.captured import Captured, Search
from remat.execute.tree import take_apart

__all__ = ["find_framework", "find_framework_of", "outside_compilers"]

P = ParamSpec("P")
T = TypeVar("T")

# package of a leaf's type → room
ROOMS = {
    "numpy": "remat.frameworks.numpy",
    "autograd": "remat.frameworks.numpy",
    "torch": "remat.frameworks.torch",
}
_KNOWN = {"jax": "JAX", "jaxlib": "JAX", "tensorflow": "TensorFlow", "keras": "Keras"}


def outside_compilers(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run as it is where torch.compile comes upon it: a schedule is no graph to be compiled."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            return torch._dynamo.disable(function)(*args, **kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return run


def find_framework(*values: Any) -> ModuleType:
    """The room for the leaves of these values; numbers alone are NumPy's."""
    found = "numpy"
    for leaf in take_apart(values)[0]:
        packages = {kind.__module__.partition(".")[0] for kind in type(leaf).__mro__}
        for package in packages & _KNOWN.keys():
            raise StepError(
                f"{_KNOWN[package]} loops cannot be run by this release: a leaf is a {package}.{type(leaf).__name__}. "
                "Give NumPy arrays or PyTorch tensors; remat.plan plans for every framework"
            )
        if "torch" in packages:
            found = "torch"
    return import_module(ROOMS[found])


def find_framework_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleType:
    """The room for a call: that of its arguments; if these are no traced arrays, that of what the function uses."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):
        return find_framework(args, kwargs)
    if any(isinstance(each, torch.Tensor) for each in args) or isinstance(fn, torch.nn.Module):
        return import_module(ROOMS["torch"])
    room = find_framework(args, kwargs)
    if room.__name__ == ROOMS["torch"] or _any_box(args, kwargs):
        return room
    things = _TorchThings(torch)
    Captured(things, fn)
    return import_module(ROOMS["torch"]) if things.found else room


def _any_box(*values: Any) -> bool:
    """Whether a leaf is traced by autograd."""
    kinds = {type(leaf) for leaf in take_apart(values)[0]}
    return any(map(_is_box, kinds))


def _is_box(kind: type) -> bool:
    return any(each.__module__ == "autograd.tracer" and each.__name__ == "Box" for each in kind.__mro__)


class _TorchThings(Search):
    """Looks in closures for anything of PyTorch; see `execute.captured.Boxes`."""

    opaque: ClassVar[tuple[type, ...]] = ()
    plain: ClassVar[frozenset[type]] = frozenset()

    def __init__(self, torch: ModuleType) -> None:
        self.found = False
        self._kinds = (torch.Tensor, torch.nn.Module)

    def __bool__(self) -> bool:
        return not self.found

    def has(self, leaf: Any) -> bool:
        self.meet(leaf, "")
        return False

    def meet(self, value: Any, name: str) -> None:
        self.found = self.found or isinstance(value, self._kinds)
