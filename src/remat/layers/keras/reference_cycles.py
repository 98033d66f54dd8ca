"""Tensors in reference cycles: on PyTorch, Keras and PyTorch leave some at every call, by their functions for trees.

The rule: while layers run, Python's collector waits, so that what they leave is still in its youngest generation; that
is collected behind them. Otherwise a state of each step of a loop, with the tape that it belongs to, stays until Python
happens to collect an older generation: an LSTM cut by seven save points took up to 75 % of the memory of a plain one.

What it can miss: cycles that layers of the user's own make and hold for longer. The cost: one young collection for a
segment, in place of those that its objects would have caused; cycles of one segment at a time are there.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import keras

__all__ = ["collected_cycles"]


@contextmanager
def collected_cycles() -> Iterator[None]:
    """A block whose reference cycles are gone after it, on PyTorch; elsewhere they hold no memory."""
    if keras.backend.backend() != "torch":
        yield
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if collects:
            gc.enable()
