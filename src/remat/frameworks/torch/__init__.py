"""PyTorch: loops and segments on tensors.

Loops: `scan.py` flattens a user's values, `probe.py` records the first step to see what it depends on, `function.py` is
the flat autograd function, `loop_outputs.py` its results. `backend.py` is what the interpreter calls, `tape.py` a
recorded range of steps. `measure.py` measures a step, by `meter.py`; `device_determinism.py` compares fingerprints on a
device. `second_order.py` goes beyond first derivatives, `vmap.py` is torch.func.vmap.

Segments: `checkpoint.py` recomputes one function, and says by which rules; `recompute.py` is one recomputation,
`saved_tensors.py` what stands for saved tensors. `checkpointed_module.py` wraps a module.

What both start again from: `capture_filter.py`, `segment_closure.py` and `detached_cells.py` find captured tensors,
`replayable_state.py` random generators and buffers, `leaf_state.py` flags, hooks and versions, `autocast.py` autocast.

Private names of PyTorch are used in `functorch.py`, `fsdp.py`, `graph.py`, `modules.py` and `meter.py` only.
"""

from remat.frameworks.torch.checkpoint import checkpoint
from remat.frameworks.torch.checkpointed_module import checkpoint_module
from remat.frameworks.torch.detection import (
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
from remat.frameworks.torch.leaves import flatten, prepend, stack, unpack
from remat.frameworks.torch.meter import free_on as free_bytes
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
