"""Tensors in reference cycles: on PyTorch, the tree functions of Keras and PyTorch leave some at every call.

The rule: while layers run, Python's collector is off, so that what they leave is still in its youngest generation,
which is collected afterwards. Otherwise a state of each step of a loop, with the tape that it belongs to, stays until
Python happens to collect an older generation: an LSTM cut by seven save points took up to 75 % of the memory of a plain
one.

What it can miss: cycles that the user's own layers create and hold for longer. The cost: one young collection for each
segment, in place of those that its objects would have caused; the cycles of one segment at a time stay in memory.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import keras

__all__ = ["collected_cycles"]


@contextmanager
def collected_cycles() -> Iterator[None]:
    """A context whose reference cycles are collected at its end, on PyTorch; elsewhere they hold no memory."""
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
