"""JAX: the room for its arrays and tracers.

Loops: `calls.py` takes a user's values apart, `steps.py` makes a program of a step, `loop.py` and `whiles.py` are loops
of known and unknown length as functions of flat arrays. On the device, `units.py` runs steps, `tapes.py` records and
pulls them back, `reversal.py` is the reverse sweep and `places.py` says where states are kept. `functions.py`,
`composed.py` and `primitives.py` give functions their derivatives in both modes, `derived.py` those of derivatives;
`transformed.py` and `mapping.py` are for tangents and batches, `planning.py` plans by looks (`shapes.py`). `driven.py`
and `verbs.py` are for loops that Python drives.

Segments: `segments.py` forwards to `jax.checkpoint`, `parts.py` tells arrays from other values, `policies.py` names
policies, `dropped.py` wraps pytrees.
"""

from remat.frameworks.jax.checkpoint import checkpoint
from remat.frameworks.jax.checkpointed_module import checkpoint_module
from remat.frameworks.jax.leaves import flatten, prepend, stack, unpack
from remat.frameworks.jax.ownership import (
    ARRAY_TYPES,
    CONVERSION,
    DECIDES_LOOPS,
    DECIDES_SEGMENTS,
    HAS_POLICIES,
    MIXES,
    NAME,
    TITLE,
    is_module,
    is_tracing,
    owns,
)
from remat.frameworks.jax.scan import free_bytes, scan, while_loop

__all__ = [
    "ARRAY_TYPES",
    "CONVERSION",
    "DECIDES_LOOPS",
    "DECIDES_SEGMENTS",
    "HAS_POLICIES",
    "MIXES",
    "NAME",
    "TITLE",
    "checkpoint",
    "checkpoint_module",
    "flatten",
    "free_bytes",
    "is_module",
    "is_tracing",
    "owns",
    "prepend",
    "scan",
    "stack",
    "unpack",
    "while_loop",
]
