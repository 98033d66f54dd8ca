"""The frameworks: the only rooms that may import one.

In: the values that a user gives. Out: the room that can differentiate them, found by the types of the leaves; no
framework is imported for its own sake. A framework is one folder here and one line in `ROOMS`.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from remat.errors import StepError
from remat.execute.tree import take_apart

__all__ = ["find_framework"]

# package of a leaf's type → room
ROOMS = {
    "numpy": "remat.frameworks.numpy",
    "autograd": "remat.frameworks.numpy",
    "torch": "remat.frameworks.torch",
}
_KNOWN = {"jax": "JAX", "jaxlib": "JAX", "tensorflow": "TensorFlow", "keras": "Keras"}


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
