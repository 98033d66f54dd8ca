"""Modules of flax.nnx in segments: their state goes in and comes out as arrays, as `nnx.remat` has it.

Rule: such a module is an object that its calls change (counters of random streams, statistics). A segment is traced
with a copy, made from its arrays; what the copy's arrays are at the end is written to the module itself, once. It
misses attributes that are no variables, and a module that the function closes over: flax refuses to change that one.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from remat.frameworks.jax.avals import Array
from remat.pytree import Leaf, PyTree

__all__ = ["WithoutModules"]


def _nnx() -> Any:
    """flax.nnx, if it is imported: nobody can have a module of it otherwise."""
    return sys.modules.get("flax.nnx")


class WithoutModules:
    """A call whose function and arguments hold modules of nnx, as one of a function of arrays that returns their state.

    `modules` are the different ones among function and arguments; without any there is nothing to do.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> None:
        nnx = _nnx()
        types = tuple(kind for name in ("Pytree", "Object", "Variable") if (kind := getattr(nnx, name, None)))
        self.modules: list[Leaf] = []
        if nnx is None or not types:
            return
        # As `isinstance` finds them, before JAX takes them apart: modules of nnx are pytrees.
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
        """The leaves of function and arguments that are no modules."""
        return [leaf for leaf, number in zip(self._leaves, self._numbers, strict=True) if number is None]

    def __call__(self, arrays: list[Array], others: list[Leaf]) -> tuple[Any, list[Array]]:
        """What the function returns, and the arrays of the modules afterwards."""
        copies = _nnx().merge(self._graph, jax.tree.unflatten(self._state_tree, arrays))
        rest: Iterator[Leaf] = iter(others)
        leaves = [next(rest) if number is None else copies[number] for number in self._numbers]
        fn, args, kwargs = jax.tree.unflatten(self._tree, leaves)
        result = fn(*args, **kwargs)
        return result, jax.tree.leaves(_nnx().state(copies))

    def update(self, arrays: list[Array]) -> None:
        """Write the arrays into the modules themselves."""
        _nnx().update(tuple(self.modules), jax.tree.unflatten(self._state_tree, arrays))
