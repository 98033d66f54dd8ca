"""What a trace on JAX leaves in caches of functions (functools.lru_cache): arrays of the trace, useless elsewhere.

The rule: results that a trace has put into a cache are removed after it if they may have arrays of the trace; all
others stay, so that a function that draws a random number draws it once. If both is true of one function, that is an
error, since it would draw again. The cost: a look at the results that there are before and after a trace.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from remat.closures.cached_results import forget_results, is_cache, shown_results
from remat.closures.closure_search import ClosureSearch
from remat.errors import StepError
from remat.execute.array_state import small_arrays
from remat.execute.python_state import PythonState
from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import StateReplay
from remat.pytree import flatten
from remat.source.run_time.statics import is_static

__all__ = ["forgetting", "is_plain", "states_of"]


def is_plain(leaf: Any) -> bool:
    """Whether a leaf is a plain value, which holds no JAX array."""
    if isinstance(leaf, np.ndarray):
        return bool(leaf.dtype.kind != "O")
    return is_static(leaf) or isinstance(leaf, int | float | complex | np.generic | np.dtype | range)


def states_of(search: ClosureSearch, *, results: bool = True) -> list[ReplayableState]:
    """What a step may change that is set back before it runs again: generators, containers, small NumPy arrays."""
    mine = () if results else {id(each) for _, each in search.results}
    containers = PythonState(each for each in search.containers if id(each) not in mine)
    return [*search.generators, containers, *small_arrays(search.arrays)]


@contextmanager
def forgetting(search: ClosureSearch) -> Iterator[None]:
    """A context that removes results from caches that it has filled, if these may have arrays of its trace."""
    caches = [cache for cache in search.caches if is_cache(cache)]
    before = [(cache, cache.cache_info().misses, list(shown_results(cache).values())) for cache in caches]
    replay = StateReplay(states_of(search, results=False)) if search.results else None
    yield
    for cache, misses, results in before:
        known = set(map(id, results))
        new = shown_results(cache).items() if cache.cache_info().misses != misses else ()
        traced = [key for key, result in new if id(result) not in known and _may_be_traced(result, search)]
        forget_results(cache, traced)
        if traced and replay is not None and any(cache is each for each, _ in search.results):
            replay.snapshot()  # for its side effect: it updates `used`
            if replay.used:
                raise StepError(
                    f"{cache.__name__} has a cache (functools), changes something besides (such as a random "
                    "generator), and returns an array that is traced: call it before the loop, or return numbers of "
                    "NumPy from it"
                )


def _may_be_traced(result: Any, search: ClosureSearch) -> bool:
    return any(
        not _is_concrete(leaf) if isinstance(leaf, search.taken) else not is_plain(leaf) for leaf in flatten(result)[0]
    )


def _is_concrete(array: Any) -> bool:
    return all(cls.__name__ != "Tracer" for cls in type(array).__mro__)
