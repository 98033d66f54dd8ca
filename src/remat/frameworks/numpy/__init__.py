"""NumPy: loops and segments for arrays, numbers and autograd's boxes, differentiated by autograd or by a user's VJP.

| package or file | contents |
|---|---|
| `loops/` | `scan`, `while_loop`: loops run by a schedule |
| `segments/` | `checkpoint`: functions that are recomputed in the backward |
| `captured_state.py` | what a step or segment changes besides its results, replayed and restored |
| `escaped_values.py` | values that leave a step or segment through a container, whose gradient would be lost |
| `protection.py` | read-only arrays for every step, and the modes for steps that write |
| `tape.py`, `tape_contents.py` | recorded ranges of steps and all uses of autograd's internals; what a tape holds |
| `multiple_results.py` | primitives with several results, whose cotangents are sparse |
| `gradients_of.py` | gradients of a function of arrays |
| `leaves.py`, `array_updates.py` | operations on leaves; functional item assignment |
| `measure_chain.py`, `meter.py` | the cost of stages; allocated bytes, by tracemalloc |
| `detection.py` | which values are autograd's |
"""

from autograd.builtins import tuple as ag_tuple

from remat.frameworks.numpy.array_updates import (
    integers,
    is_concrete,
    is_differentiating,
    put_item,
    random_states,
    segment,
    shares_memory,
    stays_within_bounds,
    tape_bytes,
    unstack,
)
from remat.frameworks.numpy.detection import TRAITS, checkpoint_module, is_module, is_tracing, owns
from remat.frameworks.numpy.leaves import flatten, own, prepend, separate, stack, unpack
from remat.frameworks.numpy.loops import second_order as _second_order  # registers rules of derivatives  # noqa: F401
from remat.frameworks.numpy.loops.scan import scan, while_loop
from remat.frameworks.numpy.measure_chain import chain_key, measure_chain
from remat.frameworks.numpy.meter import free_bytes
from remat.frameworks.numpy.segments.checkpoint import checkpoint

__all__ = [
    "TRAITS",
    "ag_tuple",
    "chain_key",
    "checkpoint",
    "checkpoint_module",
    "flatten",
    "free_bytes",
    "integers",
    "is_concrete",
    "is_differentiating",
    "is_module",
    "is_tracing",
    "measure_chain",
    "own",
    "owns",
    "prepend",
    "put_item",
    "random_states",
    "scan",
    "segment",
    "separate",
    "shares_memory",
    "stack",
    "stays_within_bounds",
    "tape_bytes",
    "unpack",
    "unstack",
    "while_loop",
]
