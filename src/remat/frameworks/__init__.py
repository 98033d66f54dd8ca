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

ROOMS = {"numpy": "remat.frameworks.numpy", "autograd": "remat.frameworks.numpy"}  # package of a leaf's type → room
_KNOWN = {"torch": "PyTorch", "jax": "JAX", "jaxlib": "JAX", "tensorflow": "TensorFlow", "keras": "Keras"}


def find_framework(*values: Any) -> ModuleType:
    """The room for the leaves of these values; numbers alone are NumPy's."""
    for leaf in take_apart(values)[0]:
        package = type(leaf).__module__.partition(".")[0]
        if package in _KNOWN and package not in ROOMS:
            raise StepError(
                f"{_KNOWN[package]} loops cannot be run by this release: a leaf is a {package}.{type(leaf).__name__}. "
                "Give NumPy arrays; remat.plan plans for every framework"
            )
    return import_module(ROOMS["numpy"])
