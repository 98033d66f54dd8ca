"""NumPy: loops and segments for arrays, numbers and autograd's boxes, differentiated by autograd or by a user's VJP.

| file | contents |
|---|---|
| `scan.py` | the entry points `scan` and `while_loop`: users' values to flat leaves and back |
| `primitive.py` | a loop as one autograd primitive: first sweep when it is called, reverse sweep in its VJP |
| `captured_state.py` | what a step or segment changes besides its results: replayed, and put back |
| `escaped_values.py` | values that leave a step or segment by a container, whose gradient would be lost |
| `protection.py` | read-only arrays in every step, and the modes in which steps that write are run |
| `activity.py` | which leaves of the carry are boxes in the plain program |
| `backend.py` | what the interpreter calls, as far as both backends share it |
| `autograd_backend.py` | steps that autograd records |
| `custom_vjp_backend.py` | steps that are pulled back by the user's `vjp=` |
| `tape.py` | recorded ranges of steps, their pullback, and all that autograd does not document |
| `multiple_results.py` | several results of one primitive, whose cotangents are not dense |
| `second_order.py` | VJP and JVP of a loop as loops, which can be differentiated again |
| `checkpoint.py` | segments: functions that are recomputed in the backward pass |
| `segment_outputs.py` | the outputs of a segment, and their comparison with recomputed ones |
| `leaves.py` | operations on leaves: specs, copies, bytes, fingerprints |
| `measure.py`, `measure_chain.py` | what steps and stages cost, measured |
| `meter.py` | bytes that are allocated, by tracemalloc |
| `detection.py` | which values are autograd's |
"""

from autograd.builtins import tuple as ag_tuple

from remat.frameworks.numpy import second_order as _second_order  # registers rules of derivatives  # noqa: F401
from remat.frameworks.numpy.array_updates import (
    integers,
    is_concrete,
    is_differentiating,
    put_item,
    random_states,
    segment,
    shares_memory,
    unstack,
)
from remat.frameworks.numpy.checkpoint import checkpoint
from remat.frameworks.numpy.detection import TRAITS, checkpoint_module, is_module, is_tracing, owns
from remat.frameworks.numpy.leaves import flatten, own, prepend, separate, stack, unpack
from remat.frameworks.numpy.measure_chain import chain_key, measure_chain
from remat.frameworks.numpy.meter import free_bytes
from remat.frameworks.numpy.scan import scan, while_loop

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
    "unpack",
    "unstack",
    "while_loop",
]
