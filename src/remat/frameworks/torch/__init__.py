"""PyTorch: the room for tensors.

Loops: `calls.py` takes a user's values apart, `opening.py` records the first step to see what it depends on, `loop.py`
is the flat autograd function, `results.py` what it gives. `verbs.py` is what the interpreter asks for, `tape.py` a
recorded range. `captured.py` finds what a step closes over, `sources.py` what it draws on, `modes.py` how it is called;
`measuring.py` and `meter.py` weigh it, `guard.py` compares. `derived.py` goes beyond first order, `mapped.py` is vmap.

Segments: `segments.py` recomputes one function, `held.py` stands for what its backward needs, `lifted.py`, `drawn.py`
and `standing.py` are what it starts from again, `dropped.py` is the wrapper of a module.
"""

from remat.frameworks.torch.checkpoint import checkpoint
from remat.frameworks.torch.checkpointed_module import checkpoint_module
from remat.frameworks.torch.leaves import flatten, prepend, stack, unpack
from remat.frameworks.torch.meter import free_on as free_bytes
from remat.frameworks.torch.ownership import (
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
from remat.frameworks.torch.scan import scan, while_loop

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
