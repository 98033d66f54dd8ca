"""NumPy, differentiated by autograd or by the user's own adjoint: the room for arrays, numbers and autograd's boxes.

`calls.py` takes a user's values apart, `loop.py` is the autograd primitive. `verbs.py` is what the interpreter asks
for: `recorded.py` by autograd (`tape.py`), `adjoint.py` by the user. `body.py` runs steps on plain arrays,
`captured.py` finds what a step closes over, `derived.py` goes beyond first order. `segments.py`
recomputes single functions.
"""

from autograd.builtins import tuple as ag_tuple

from remat.frameworks.numpy.checkpoint import checkpoint
from remat.frameworks.numpy.leaves import unpack
from remat.frameworks.numpy.meter import free_bytes
from remat.frameworks.numpy.scan import scan, while_loop
from remat.frameworks.numpy.sequences import stacked, with_first

NAME = "numpy"

__all__ = ["NAME", "ag_tuple", "checkpoint", "free_bytes", "scan", "stacked", "unpack", "while_loop", "with_first"]
