"""The results of a primitive that has several, for autograd.

Rule: a cotangent of such results has an entry for each result, and None where nothing flowed back.
What it can miss: nothing; None is zero wherever it is read. It adds like any other cotangent, to any order.
Cost: autograd's own tuples have dense cotangents. There the first entry that comes in allocates zeros for all results
and is added to them, so that a loop's outputs, which can be all that is in memory, have two cotangents at once. Here an
entry is the array that came in. Nor does taking a result keep the others alive, as it does for a tuple.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from autograd.extend import Box, VSpace, defjvp, defjvp_argnum, defvjp, defvjp_argnum, primitive, vspace
from autograd.tracer import getval

from remat.pytree import Leaf

Pullback: TypeAlias = Callable[[Leaf], Leaf]

__all__ = ["Results", "make_results", "sparse_entries"]


class Results:
    """Results, or their cotangents, of which some can be None."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[Leaf | None]) -> None:
        self.entries = tuple(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, k: int) -> Leaf | None:
        return self.entries[k]


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


# Autograd finds boxes, vector spaces and rules by type: from here on results are as good as its own containers.
_ResultsBox.register(Results)
_ResultsVSpace.register(Results)
defvjp(_take, _pull_take)
defjvp(_take, _push_take)
defvjp(_put, _pull_put)
defjvp(_put, "same")
defvjp_argnum(make_results, _pull_make)
defjvp_argnum(make_results, lambda argnum, tangent, ans, args, kwargs: _put(tangent, argnum, len(args)))
