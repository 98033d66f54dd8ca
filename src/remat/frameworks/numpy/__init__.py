"""NumPy, differentiated by autograd or by the user's own adjoint: the room for arrays, numbers and autograd's boxes.

`calls.py` takes a user's values apart, `loop.py` is the autograd primitive. `verbs.py` is what the interpreter asks
for: `recorded.py` by autograd (`tape.py`), `adjoint.py` by the user. `body.py` runs steps on plain arrays,
`captured.py` finds what a step closes over, `derived.py` goes beyond first order. `segments.py`
recomputes single functions.
"""

from autograd.builtins import tuple as ag_tuple

from remat.frameworks.numpy.checkpoint import checkpoint
from remat.frameworks.numpy.leaves import flatten, prepend, stack, unpack
from remat.frameworks.numpy.meter import free_bytes
from remat.frameworks.numpy.ownership import (
    ARRAY_TYPES,
    CONVERSION,
    DECIDES_LOOPS,
    DECIDES_SEGMENTS,
    HAS_POLICIES,
    MIXES,
    NAME,
    TITLE,
    checkpoint_module,
    is_module,
    is_tracing,
    owns,
)
from remat.frameworks.numpy.scan import scan, while_loop

__all__ = [
    "ARRAY_TYPES",
    "CONVERSION",
    "DECIDES_LOOPS",
    "DECIDES_SEGMENTS",
    "HAS_POLICIES",
    "MIXES",
    "NAME",
    "TITLE",
    "ag_tuple",
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
