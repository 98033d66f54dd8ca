"""What it costs to see that a step has not used the global random generators, with and without reading their memory.

    python benchmarks/rng_snapshot.py

`execute/rng_state.py` reads the words of both Mersenne Twisters (`random`, `np.random`) with ctypes, and asks for the
full state only if they have changed. `memory` is the time of that; `public` the time with the cheapest version stamp
that the public functions allow, `random.getstate()` and the bytes of `np.random.get_state()`; `fallback` the time where
the layout in memory is unknown. A loop takes one snapshot for each kept state; a segment takes one before its first run
and compares versions after it. Microseconds, medians; `ratio` is public / memory.
"""

import random
import statistics
import time
from contextlib import contextmanager, nullcontext

import numpy as np

from remat.execute.rng_state import _NumpyGlobal, _PythonGlobal
from remat.execute.state_replay import SegmentReplay, StateReplay

ROUNDS, CALLS = 15, 100


def median_microseconds(call):
    """The median over rounds of the mean time of a call."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - began) / CALLS)
    return 1e6 * statistics.median(times)


def numpy_words(_):
    state = np.random.get_state(legacy=False)
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["gauss"]


@contextmanager
def replaced(name, for_python, for_numpy):
    """A block in which both global generators have another method of this name."""
    saved = [(cls, getattr(cls, name)) for cls in (_PythonGlobal, _NumpyGlobal)]
    setattr(_PythonGlobal, name, for_python)
    setattr(_NumpyGlobal, name, for_numpy)
    try:
        yield
    finally:
        for cls, method in saved:
            setattr(cls, name, method)


def times(way):
    """Microseconds for a loop's kept state and for a segment."""
    with way:
        replay = StateReplay()
        return median_microseconds(replay.snapshot), median_microseconds(lambda: SegmentReplay([]).forget_unused())


def main():
    random.seed(0)
    np.random.seed(0)
    memory = times(nullcontext())
    public = times(replaced("raw_words", lambda _: random.getstate(), numpy_words))
    fallback = times(replaced("raw_words", lambda _: None, lambda _: None))
    print(f"{'':<22}{'memory':>9}{'public':>9}{'fallback':>10}{'ratio':>8}")
    for name, *row in zip(("a loop's kept state", "a segment"), memory, public, fallback, strict=True):
        print(f"{name:<22}{row[0]:>9.1f}{row[1]:>9.1f}{row[2]:>10.1f}{row[1] / row[0]:>8.1f}")


if __name__ == "__main__":
    main()
