"""The results of a primitive that has several, for autograd.

Rule: a cotangent of such results has an entry for each result, and None where nothing flowed back.
What it can miss: nothing; None is zero wherever it is read. It adds like any other cotangent, to any order.
Cost: autograd's own tuples have dense cotangents. There the first entry that comes in allocates zeros for all results
and is added to them, so that a loop's outputs, which can be all that is in memory, have two cotangents at once. Here an
entry is the array that came in. Nor does taking a result keep the others alive, as it does for a tuple.
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
    """Results, or their cotangents, of which some can be None."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[Leaf | None]) -> None:
        self.entries = tuple(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, k: int) -> Leaf | None:
        return self.entries[k]


@dataclass
class PartlyTraced:
    """All leaves that a primitive returns, of which autograd sees the differentiable ones only."""

    leaves: list[Leaf]
    differentiable: list[bool]

    def differentiable_leaves(self) -> Results:
        """The differentiable leaves: what the primitive returns."""
        return Results([leaf for leaf, active in zip(self.leaves, self.differentiable, strict=True) if active])

    def with_boxes(self, boxes: Sequence[Leaf]) -> list[Leaf]:
        """All leaves, with what the primitive has returned in the places of the differentiable ones.

        No leaves are left here: this object may live as long as the graph, and they must not.
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
    """Results of these entries, each traced or not."""
    return Results(entries)


class _ResultsBox(Box):  # type: ignore[misc]
    """Results that autograd traces."""

    __slots__ = ()
    __getitem__ = _take

    def __len__(self) -> int:
        return len(self._value)


class _ResultsVSpace(VSpace):  # type: ignore[misc]
    """Sums of cotangents: an entry is added where both have one."""

    def __init__(self, value: Results) -> None:
        self.size = len(value)

    def zeros(self) -> Results:
        return Results([None] * self.size)

    def _add(self, x: Results, y: Results) -> Results:
        return Results([_sum(a, b) for a, b in zip(x.entries, y.entries, strict=True)])

    _mut_add = _add  # entries are the caller's arrays, so none is added to in place


def _sum(a: Leaf | None, b: Leaf | None) -> Leaf | None:
    if a is None or b is None:
        return b if a is None else a
    return vspace(a).add(a, b)


def sparse_entries(results: Leaf) -> list[Leaf | None]:
    """The entries of results or cotangents, traced or not; None where there is none."""
    # Whether there is an entry can only be asked of the plain value: taking None out of a box would trace it.
    plain = getval(results).entries
    return [None if entry is None else results[k] for k, entry in enumerate(plain)]


def _pull_take(ans: Leaf, results: Leaf, k: int) -> Pullback:
    count = len(results)  # and not `results`: the closure lives as long as the graph
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
    """Register the rules of a primitive from an object and leaves to results.

    `gradients` are those of the leaves with some indices, from the object, the leaves and a cotangent or None for each
    result; `tangents` those of the results, from tangents of leaves by index.
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


# Autograd finds boxes, vector spaces and rules by type: from here on results are as good as its own containers.
_ResultsBox.register(Results)
_ResultsVSpace.register(Results)
defvjp(_take, _pull_take)
defjvp(_take, _push_take)
defvjp(_put, _pull_put)
defjvp(_put, "same")
defvjp_argnum(make_results, _pull_make)
defjvp_argnum(make_results, lambda argnum, tangent, ans, args, kwargs: _put(tangent, argnum, len(args)))
