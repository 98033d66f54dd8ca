"""WHAT USERS CALL: loops, segments, chains and models. The arrays passed in decide the framework."""

from remat.interface.auto_checkpointing import LargestBatch, auto_checkpoint, explain, largest_batch
from remat.interface.chaining import chain, measure
from remat.interface.checkpointing import adaptive_checkpoint, checkpoint, drop
from remat.interface.looping import scan, while_loop
from remat.interface.replacing import replace_loops

__all__ = [
    "LargestBatch",
    "adaptive_checkpoint",
    "auto_checkpoint",
    "chain",
    "checkpoint",
    "drop",
    "explain",
    "largest_batch",
    "measure",
    "replace_loops",
    "scan",
    "while_loop",
]
