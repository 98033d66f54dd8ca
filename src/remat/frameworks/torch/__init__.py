"""PyTorch: the room for tensors.

`calls.py` takes a user's values apart, `opening.py` records the first step to see what it depends on, `loop.py` is the
flat autograd function. `verbs.py` is what the interpreter asks for. `captured.py` finds what a step closes over,
`sources.py` what it draws on; `derived.py` goes beyond first order. `segments.py` recomputes single functions.
"""

from remat.frameworks.torch.calls import scan, while_loop
from remat.frameworks.torch.dropped import dropped
from remat.frameworks.torch.leaves import unpack
from remat.frameworks.torch.meter import free_on as free_bytes
from remat.frameworks.torch.segments import checkpoint
from remat.frameworks.torch.sequences import stacked, with_first

NAME = "torch"

__all__ = ["NAME", "checkpoint", "dropped", "free_bytes", "scan", "stacked", "unpack", "while_loop", "with_first"]
