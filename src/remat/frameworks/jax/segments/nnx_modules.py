"""flax.nnx modules in segments: their state goes in and comes out as arrays, as in `nnx.remat`.

Rule: an nnx module is an object that its calls modify (counters of random streams, statistics). A segment is traced
with a copy built from the module's arrays; the copy's final arrays are written back to the module once. It misses
attributes that are not variables, and a module that the function closes over, which flax refuses to modify.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from remat.frameworks.jax.avals import Array
from remat.pytree import Leaf, PyTree

__all__ = ["WithoutModules"]


def _nnx() -> Any:
    """flax.nnx if it is imported; otherwise nobody can have one of its modules."""
    return sys.modules.get("flax.nnx")


class WithoutModules:
    """A call with nnx modules, as a call of a function of arrays that also returns the modules' state.

    `modules` are the distinct modules among the function and its arguments; if there are none, nothing is to be done.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> None:
        nnx = _nnx()
        types = tuple(kind for name in ("Pytree", "Object", "Variable") if (kind := getattr(nnx, name, None)))
        self.modules: list[Leaf] = []
        if nnx is None or not types:
            return
        # Find them by type, before JAX flattens them: nnx modules are pytrees.
        self._leaves, self._tree = jax.tree.flatten((fn, args, kwargs), is_leaf=lambda leaf: isinstance(leaf, types))
        self._numbers: list[int | None] = []
        for leaf in self._leaves:
            is_module = isinstance(leaf, types)
            if is_module and not any(leaf is module for module in self.modules):
                self.modules.append(leaf)
            self._numbers.append(next((k for k, each in enumerate(self.modules) if each is leaf), None))
        if self.modules:
            self._graph, state = nnx.split(tuple(self.modules))
            self.arrays, self._state_tree = jax.tree.flatten(state)
            self.__name__ = getattr(fn, "__name__", type(fn).__name__)

    def others(self) -> list[Leaf]:
        """The leaves of the function and its arguments that are not modules."""
        return [leaf for leaf, number in zip(self._leaves, self._numbers, strict=True) if number is None]

    def __call__(self, arrays: list[Array], others: list[Leaf]) -> tuple[Any, list[Array]]:
        """What the function returns, and the modules' arrays afterwards."""
        copies = _nnx().merge(self._graph, jax.tree.unflatten(self._state_tree, arrays))
        rest: Iterator[Leaf] = iter(others)
        leaves = [next(rest) if number is None else copies[number] for number in self._numbers]
        fn, args, kwargs = jax.tree.unflatten(self._tree, leaves)
        result = fn(*args, **kwargs)
        return result, jax.tree.leaves(_nnx().state(copies))

    def update(self, arrays: list[Array]) -> None:
        """Write the arrays back into the modules."""
        _nnx().update(tuple(self.modules), jax.tree.unflatten(self._state_tree, arrays))
