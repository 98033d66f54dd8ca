"""In-place updates of plain programs as functions, for autograd, whose boxes cannot be written into.

`put_item(x, i, v)` returns `x` after `x[i] = v`. `unstack` returns the rows of an array, and collects their cotangents
in one array (indexing a box row by row would cost autograd a full array of zeros per row).
"""

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import Box, VSpace, defjvp, defvjp, primitive

from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.frameworks.numpy.leaves import is_boxed, numbers
from remat.frameworks.numpy.tape import ActiveTraces
from remat.loops.stacked_values import SeparateRows
from remat.pytree import Leaf, PyTree

__all__ = [
    "integers",
    "is_concrete",
    "is_differentiating",
    "put_item",
    "random_states",
    "segment",
    "shares_memory",
    "unstack",
]


def is_differentiating() -> bool:
    """Whether a trace is open, so that what runs now may be differentiated."""
    return bool(ActiveTraces())


def put_item(x: Leaf, index: Any, value: Leaf) -> Leaf:
    """The array after `x[index] = value`: `x` itself if it is writeable, else a new one."""
    if is_boxed(x) or is_boxed(value):
        return _put(x, value, _plain_index(index))
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        x = x.copy()
    x[index] = value
    return x


def _plain_index(index: Any) -> Any:
    return tuple(map(numbers, index)) if isinstance(index, tuple) else numbers(index)


@primitive  # type: ignore[untyped-decorator]
def _put(x: Leaf, value: Leaf, index: Any) -> Leaf:
    out = np.array(x)
    out[index] = value
    return out


def _bar_of_x(ans: Leaf, x: Leaf, value: Leaf, index: Any) -> Callable[[Leaf], Leaf]:
    return lambda bar: _put(bar, 0.0, index)


def _bar_of_value(ans: Leaf, x: Leaf, value: Leaf, index: Any) -> Callable[[Leaf], Leaf]:
    shape, dtype = np.shape(value), np.result_type(value)

    def pull_back(bar: Leaf) -> Leaf:
        # An element that the index names twice holds only the last value; the others get no cotangent.
        owner = np.full(np.shape(numbers(bar)), -1)
        places = np.arange(np.size(owner[index])).reshape(np.shape(owner[index]))
        owner[index] = places
        bar = bar[index] * (owner[index] == places)
        while anp.ndim(bar) > len(shape):
            bar = anp.sum(bar, axis=0)
        for axis, size in enumerate(shape):
            if size == 1 and anp.shape(bar)[axis] != 1:
                bar = anp.sum(bar, axis=axis, keepdims=True)
        return anp.real(bar) if dtype.kind == "f" and np.iscomplexobj(numbers(bar)) else bar

    return pull_back


defvjp(_put, _bar_of_x, _bar_of_value, argnums=(0, 1))
defjvp(
    _put,
    lambda tangent, ans, x, value, index: _put(tangent, 0.0, index),
    lambda tangent, ans, x, value, index: _put(anp.zeros_like(x), tangent, index),
    argnums=(0, 1),
)


def integers(numbers: range) -> Leaf:
    """A range as an input of a loop: each step gets a Python integer, as in `for i in numbers`."""
    return SeparateRows(numbers)


def random_states() -> list[ReplayableState]:
    """The global random generators that programs draw from."""
    return global_rng_states()


def is_concrete(arrays: Sequence[Leaf]) -> bool:
    """Whether Python can branch on these arrays: always, under autograd."""
    return True


def segment(
    function: Callable[..., list[Leaf]], arrays: Sequence[Leaf], again: Callable[..., list[Leaf]] | None = None
) -> list[Leaf]:
    """Call the function, without checkpointing: turns keep their tapes here, and loops are never unrolled."""
    return function(*arrays)


def tape_bytes(function: Callable[..., list[Leaf]], arrays: Sequence[Leaf]) -> int:
    """0: `segment` recomputes nothing, so there is no tape to measure."""
    return 0


def stays_within_bounds(
    step: Callable[[PyTree, PyTree], object], carry: PyTree, x: PyTree, ranges: Sequence[range | None]
) -> bool:
    """Whether the integers of a step stay within bounds: always, since here they are Python integers."""
    return True


def unstack(rows: Leaf) -> Sequence[Leaf]:
    """The rows of an array, one by one."""
    if not is_boxed(rows):
        return [row.copy() if isinstance(row, np.ndarray) else row for row in rows]
    count, taken = len(rows), _unstack(rows)
    return [_row(taken, k) for k in range(count)]


class _Rows(list[Leaf]):
    """The rows of an array, as a type of its own for autograd."""


class _RowBars(dict[int, Leaf]):
    """Cotangents of some rows, by number: adding one takes the same time however many rows there are."""


class _RowsBox(Box):  # type: ignore[misc]
    __slots__ = ()


class _RowsVSpace(VSpace):  # type: ignore[misc]
    def __init__(self, value: Leaf) -> None:
        self.size = 0

    def zeros(self) -> _RowBars:
        return _RowBars()

    def _add(self, x: _RowBars, y: _RowBars) -> _RowBars:
        return self._mut_add(_RowBars(x), y)

    def _mut_add(self, x: _RowBars, y: _RowBars) -> _RowBars:
        for k, bar in y.items():
            x[k] = x[k] + bar if k in x else bar
        return x


@primitive  # type: ignore[untyped-decorator]
def _unstack(rows: Leaf) -> _Rows:
    return _Rows(rows)


@primitive  # type: ignore[untyped-decorator]
def _row(rows: _Rows, k: int) -> Leaf:
    return rows[k]


@primitive  # type: ignore[untyped-decorator]
def _bar_of_row(bar: Leaf, k: int) -> _RowBars:
    return _RowBars({k: bar})


@primitive  # type: ignore[untyped-decorator]
def _stacked_bars(bars: _RowBars, shape: tuple[int, ...], dtype: np.dtype) -> Leaf:
    out = np.zeros(shape, dtype)
    for k, bar in bars.items():
        out[k] = bar
    return out


@primitive  # type: ignore[untyped-decorator]
def _all_bars(bar: Leaf) -> _RowBars:
    return _RowBars(enumerate(bar))


def _bars_of_unstack(ans: Leaf, rows: Leaf) -> Callable[[Leaf], Leaf]:
    shape, dtype = rows.shape, rows.dtype
    return lambda bars: _stacked_bars(bars, shape, dtype)


@primitive  # type: ignore[untyped-decorator]
def _entry(bars: _RowBars, k: int, shape: tuple[int, ...], dtype: np.dtype) -> Leaf:
    return bars.get(k, np.zeros(shape, dtype))


# Autograd finds boxes and vector spaces by type. The derivative of each rule is again one of these functions.
for _type in (_Rows, _RowBars):
    _RowsBox.register(_type)
    _RowsVSpace.register(_type)
defvjp(_unstack, _bars_of_unstack)
defvjp(_row, lambda ans, rows, k: lambda bar: _bar_of_row(bar, k), argnums=(0,))
defvjp(_bar_of_row, lambda ans, bar, k: lambda bars: _entry(bars, k, anp.shape(bar), numbers(bar).dtype), argnums=(0,))
defvjp(_stacked_bars, lambda ans, bars, shape, dtype: _all_bars, argnums=(0,))
defvjp(_all_bars, _bars_of_unstack)
defvjp(_entry, lambda ans, bars, k, shape, dtype: lambda bar: _bar_of_row(bar, k), argnums=(0,))
defjvp(_unstack, "same")
defjvp(_row, "same")


def shares_memory(one: Leaf, other: Leaf) -> bool:
    """Whether two leaves are one object, or arrays that share memory."""
    if one is other:
        return True
    one, other = numbers(one), numbers(other)
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    return bool(np.may_share_memory(one, other))
