"""The meter of NumPy's memory: tracemalloc, which counts array data and Python objects alike."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["NumpyMeter", "free_bytes"]


def free_bytes(*values: Any) -> int | None:
    """None: NumPy's arrays are in host memory."""
    return None


class NumpyMeter:
    """Bytes that Python and NumPy have allocated, by tracemalloc."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A context in which bytes are counted; if tracemalloc is running already, it is not stopped.

        The garbage collector is off inside, since what it happens to free would be missing from the counts. Collecting
        first would take 0.2 s in a large program, and tracemalloc counts no older garbage anyway.
        """
        running, collecting = tracemalloc.is_tracing(), gc.isenabled()
        gc.disable()
        if not running:
            tracemalloc.start()
        try:
            yield
        finally:
            if not running:
                tracemalloc.stop()
            if collecting:
                gc.enable()

    def now(self) -> int:
        """The bytes allocated now."""
        return tracemalloc.get_traced_memory()[0]

    def peak(self) -> int:
        """The most bytes allocated at once since `reset_peak`."""
        return tracemalloc.get_traced_memory()[1]

    def reset_peak(self) -> None:
        """Reset the peak to the bytes allocated now."""
        tracemalloc.reset_peak()
