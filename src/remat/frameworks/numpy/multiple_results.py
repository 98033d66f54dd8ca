"""Autograd primitives with several results, whose cotangents are sparse.

The rule: a cotangent of such results has one entry per result, and None where nothing flowed back.
What it can miss: nothing; None is read as zero everywhere, and adds like any other cotangent, to any order.
The cost: autograd's own tuples have dense cotangents. There the first incoming entry allocates zeros for all results
and is added to them, so a loop's outputs, which may fill most of the memory, have two cotangents at once. Here an
entry is the incoming array itself. Nor does taking one result keep the others alive, as it does for a tuple.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from autograd.extend import (
    Box,
    VSpace,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    primitive,
    vspace,
)
from autograd.tracer import getval

from remat.pytree import Leaf

Pullback: TypeAlias = Callable[[Leaf], Leaf]

__all__ = ["PartlyTraced", "Results", "define_derivatives", "make_results"]


class Results:
    """The results of a primitive, or their cotangents, some of which may be None."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[Leaf | None]) -> None:
        self.entries = tuple(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, k: int) -> Leaf | None:
        return self.entries[k]


@dataclass
class PartlyTraced:
    """All leaves that a primitive returns; autograd sees only the differentiable ones."""

    leaves: list[Leaf]
    differentiable: list[bool]

    def differentiable_leaves(self) -> Results:
        """The differentiable leaves, which the primitive returns to autograd."""
        return Results([leaf for leaf, active in zip(self.leaves, self.differentiable, strict=True) if active])

    def with_boxes(self, boxes: Sequence[Leaf]) -> list[Leaf]:
        """All leaves, with the primitive's boxes in place of the differentiable ones.

        This forgets the leaves, which must not live as long as the graph, as this object may.
        """
        leaves, self.leaves = self.leaves, []
        rest = iter([boxes[i] for i in range(len(boxes))])
        return [next(rest) if active else leaf for leaf, active in zip(leaves, self.differentiable, strict=True)]


@primitive  # type: ignore[untyped-decorator]
def _take(results: Results, k: int) -> Leaf:
    return results.entries[k]


@primitive  # type: ignore[untyped-decorator]
def _put(entry: Leaf, k: int, count: int) -> Results:
    return Results([entry if i == k else None for i in range(count)])


@primitive  # type: ignore[untyped-decorator]
def make_results(*entries: Leaf) -> Results:
    """Results with these entries, each traced or not."""
    return Results(entries)


class _ResultsBox(Box):  # type: ignore[misc]
    """Results that autograd traces."""

    __slots__ = ()
    __getitem__ = _take

    def __len__(self) -> int:
        return len(self._value)


class _ResultsVSpace(VSpace):  # type: ignore[misc]
    """Sums of cotangents, entry by entry; None is zero."""

    def __init__(self, value: Results) -> None:
        self.size = len(value)

    def zeros(self) -> Results:
        return Results([None] * self.size)

    def _add(self, x: Results, y: Results) -> Results:
        return Results([_sum(a, b) for a, b in zip(x.entries, y.entries, strict=True)])

    _mut_add = _add  # not in place: entries are the caller's arrays


def _sum(a: Leaf | None, b: Leaf | None) -> Leaf | None:
    if a is None or b is None:
        return b if a is None else a
    return vspace(a).add(a, b)


def sparse_entries(results: Leaf) -> list[Leaf | None]:
    """The entries of results or cotangents, traced or not; None where there is none."""
    # Only the plain value can tell whether there is an entry: taking None out of a box would trace it.
    plain = getval(results).entries
    return [None if entry is None else results[k] for k, entry in enumerate(plain)]


def _pull_take(ans: Leaf, results: Leaf, k: int) -> Pullback:
    count = len(results)  # the closure lives as long as the graph, so it must not refer to `results`
    return lambda bar: _put(bar, k, count)


def _push_take(tangent: Leaf, ans: Leaf, results: Leaf, k: int) -> Leaf:
    return vspace(ans).zeros() if getval(tangent).entries[k] is None else _take(tangent, k)


def _pull_put(ans: Leaf, entry: Leaf, k: int, count: int) -> Pullback:
    space = vspace(entry)
    return lambda bar: space.zeros() if getval(bar).entries[k] is None else _take(bar, k)


def _pull_make(argnum: int, ans: Leaf, args: tuple[Leaf, ...], kwargs: dict[str, object]) -> Pullback:
    return _pull_put(ans, args[argnum], argnum, len(args))


def define_derivatives(
    function: Callable[..., Leaf],
    gradients: Callable[[Any, Sequence[Leaf], list[Leaf | None], list[int]], Sequence[Leaf]],
    tangents: Callable[[Any, Sequence[Leaf], dict[int, Leaf]], Leaf],
) -> None:
    """Register the VJP and JVP of a primitive that maps an object and leaves to results.

    `gradients(object, leaves, cotangents, indices)` returns the gradients of the leaves with these indices; cotangents
    may be None. `tangents(object, leaves, tangents)` returns those of the results, from tangents of leaves by index.
    """

    def vjp(
        argnums: Sequence[int], ans: Leaf, args: tuple[Leaf, ...], kwargs: object
    ) -> Callable[[Leaf], Sequence[Leaf]]:
        indices = [argnum - 1 for argnum in argnums]
        return lambda bar: gradients(args[0], args[1:], sparse_entries(bar), indices)

    def jvp(argnums: Sequence[int], dots: Sequence[Leaf], ans: Leaf, args: tuple[Leaf, ...], kwargs: object) -> Leaf:
        return tangents(args[0], args[1:], {argnum - 1: dot for argnum, dot in zip(argnums, dots, strict=True)})

    defvjp_argnums(function, vjp)
    defjvp_argnums(function, jvp)


# Autograd finds boxes, vector spaces and rules by type: from here on it treats `Results` like its own containers.
_ResultsBox.register(Results)
_ResultsVSpace.register(Results)
defvjp(_take, _pull_take)
defjvp(_take, _push_take)
defvjp(_put, _pull_put)
defjvp(_put, "same")
defvjp_argnum(make_results, _pull_make)
defjvp_argnum(make_results, lambda argnum, tangent, ans, args, kwargs: _put(tangent, argnum, len(args)))
