"""JAX: loops and segments for its arrays and tracers.

Packages, high to low; each imports only what is below it:

| package | contents |
|---|---|
| `segments/` | `checkpoint`, `drop`: functions that are recomputed in the backward |
| `loops/` | `scan`, `while_loop`: loops inside jit, and loops driven by Python |
| `transforms/` | functions with our own derivative and batching rules, to any order |

Below them, `avals.py` has avals, flags and everything that JAX does not document, and `partition.py` splits values into
arrays and static values. Beside them are `detection.py` (which values are JAX's), `leaves.py`, `array_updates.py`
(functional item assignment), `integer_bounds.py` (which integers may be traced), `measure_chain.py` (costs of stages)
and `replacement.py` (JAX's own loops replaced by ours).
"""

from remat.frameworks.jax.array_updates import (
    integers,
    is_concrete,
    is_differentiating,
    put_item,
    random_states,
    segment,
    shares_memory,
    tape_bytes,
    unstack,
)
from remat.frameworks.jax.detection import TRAITS, is_module, is_tracing, owns
from remat.frameworks.jax.integer_bounds import stays_within_bounds
from remat.frameworks.jax.leaves import flatten, own, prepend, separate, stack, unpack
from remat.frameworks.jax.loops.scan import free_bytes, scan, while_loop
from remat.frameworks.jax.measure_chain import chain_key, measure_chain
from remat.frameworks.jax.segments.checkpoint import checkpoint
from remat.frameworks.jax.segments.checkpointed_module import checkpoint_module

__all__ = [
    "TRAITS",
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
