"""Results that functools.cache and lru_cache hold, as contents of the functions that draw or change anything.

The rule: what a cached function does besides returning, it does only if its result is not there yet. So the results of
one that may draw random numbers, write, or change an object are contents: recomputed code starts from those that it
had, and measuring leaves none. The results of all others stay, so that recomputed code finds them.

CPython shows the dict of a cache only to its garbage collector (`gc.get_referents`). That of `functools.cache` has the
results; that of `lru_cache(maxsize=…)` has links, which a full cache uses again for other results. So one that was full
cannot be set back, which is an error.

What it can miss: functions that draw by a name that `bytecode.has_effects` does not know.
"""

import functools
import gc
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from remat.errors import DeterminismError
from remat.execute.python_state import Container, Variable

__all__ = ["forget_results", "is_cache", "results_of", "shown_results"]


def is_cache(value: Any) -> bool:
    """Whether a value is a function with a cache of functools."""
    return isinstance(value, functools._lru_cache_wrapper)


def results_of(cache: Any) -> list[Container]:
    """The results of a cache as a container; none if it keeps nothing, or if this Python does not show it."""
    table, most = _table(cache), cache.cache_parameters()["maxsize"]
    if table is None:
        return []
    return [table if most is None else _LimitedResults(cache, table, most)]


def shown_results(cache: Any) -> dict[Any, Any]:
    """The results of a cache by their keys; nothing if this Python does not show them."""
    table = _table(cache) or {}
    if cache.cache_parameters()["maxsize"] is None:
        return dict(table)
    # Its links are shown as key, result, type, the last used last, before its dict; also those without a key in it.
    referents = gc.get_referents(cache)
    end = next((k for k, each in enumerate(referents) if each is table), 0)
    by_key = dict(zip(map(id, referents[end % 3 : end : 3]), referents[end % 3 + 1 : end : 3], strict=True))
    return {key: by_key.get(id(key)) for key in table}


def forget_results(cache: Any, keys: Iterable[Any]) -> None:
    """Remove the results with these keys."""
    table = _table(cache) or {}
    for key in keys:
        del table[key]


def _table(cache: Any) -> dict[Any, Any] | None:
    # The order: results of the user's; then its dict, its function, its attributes.
    tables = [each for each in gc.get_referents(cache) if type(each) is dict and each is not cache.__dict__]
    return tables[-1] if tables and len(tables[-1]) == cache.cache_info().currsize else None


class _LimitedResults(Variable):
    """The results of a cache of limited size."""

    __slots__ = ("_cache", "_misses", "_most", "_size", "_table", "_was_full")

    def __init__(self, cache: Any, table: dict[Any, Any], most: int) -> None:
        self._cache, self._table, self._most, self._was_full = cache, table, most, False
        self._size, self._misses = len(table), cache.cache_info().misses

    def __len__(self) -> int:
        return 2 * len(self._table)

    def __iter__(self) -> Iterator[Any]:
        self._note()
        return chain(self._table, self._table.values())

    def fill(self, items: Any) -> None:
        """Set back the results."""
        self._note()
        if self._was_full:
            name = getattr(self._cache, "__qualname__", "a function")
            raise DeterminismError(
                f"{name} may draw random numbers or change objects, and its cache was full, so that it cannot be set "
                f"back to what it was: give it room for all results, as in @functools.lru_cache(maxsize=None)"
            )
        items = list(items)
        self._table.clear()
        self._table.update(zip(items[: len(items) // 2], items[len(items) // 2 :], strict=True))
        self._size = len(self._table)

    def _note(self) -> None:
        misses = self._cache.cache_info().misses
        self._was_full |= self._size + misses - self._misses > self._most
        self._size, self._misses = len(self._table), misses
