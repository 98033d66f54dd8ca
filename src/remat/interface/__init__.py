"""WHAT USERS CALL: loops, segments and chains. The framework is found from the arrays."""

from remat.interface.chaining import chain, measure
from remat.interface.checkpointing import adaptive_checkpoint, checkpoint, drop
from remat.interface.looping import scan, while_loop
from remat.interface.replacing import replace_loops

__all__ = [
    "adaptive_checkpoint",
    "chain",
    "checkpoint",
    "drop",
    "measure",
    "replace_loops",
    "scan",
    "while_loop",
]
