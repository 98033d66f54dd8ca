"""WHAT USERS CALL: loops and segments. The framework is found from the arrays."""

from remat.interface.checkpointing import adaptive_checkpoint, checkpoint, drop
from remat.interface.looping import scan, while_loop
from remat.interface.replacing import replace_loops

__all__ = [
    "adaptive_checkpoint",
    "checkpoint",
    "drop",
    "replace_loops",
    "scan",
    "while_loop",
]
