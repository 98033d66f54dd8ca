"""PyTorch: loops, segments and models on tensors.

Packages, high to low; each imports only what is below it:

| package | contents |
|---|---|
| `models/` | `auto_checkpoint`, `chain`: models under a budget in bytes |
| `segments/` | `checkpoint`, `drop`: functions that are recomputed in the backward |
| `loops/` | `scan`, `while_loop`: loops run by a schedule |
| `lineage/` | single results that are recomputed by the operators that made them |
| `replay/` | runs without side effects: everything that a function reaches, as it was at the call |
| `internals/` | private names of PyTorch, each with why and since when |

Beside them: `detection.py` (which values are PyTorch's), `leaves.py` (operations on leaves), `array_updates.py`
(functional item assignment), `meter.py` and `workspace_meter.py` (allocated bytes, on CUDA and on the CPU).
"""

from remat.frameworks.torch.array_updates import (
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
from remat.frameworks.torch.detection import TRAITS, is_module, is_tracing, owns
from remat.frameworks.torch.leaves import flatten, own, stack, unpack
from remat.frameworks.torch.loops.output_rows import prepend, separate
from remat.frameworks.torch.loops.scan import scan, while_loop
from remat.frameworks.torch.meter import free_on as free_bytes
from remat.frameworks.torch.models.auto_checkpoint import auto_checkpoint, chain_of_model, largest_batch, measure_step
from remat.frameworks.torch.models.kept_blocks import observe
from remat.frameworks.torch.models.measure_chain import chain_key, measure_chain
from remat.frameworks.torch.segments.checkpoint import checkpoint
from remat.frameworks.torch.segments.checkpointed_module import checkpoint_module

__all__ = [
    "TRAITS",
    "auto_checkpoint",
    "chain_key",
    "chain_of_model",
    "checkpoint",
    "checkpoint_module",
    "flatten",
    "free_bytes",
    "integers",
    "is_concrete",
    "is_differentiating",
    "is_module",
    "is_tracing",
    "largest_batch",
    "measure_chain",
    "measure_step",
    "observe",
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
