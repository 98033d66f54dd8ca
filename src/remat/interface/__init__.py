"""WHAT USERS CALL: loops and segments. The framework is found from the arrays."""

from remat.interface.checkpointing import CheckpointGroup, adaptive_checkpoint, checkpoint, checkpoint_segment, drop
from remat.interface.looping import scan, while_loop

__all__ = [
    "CheckpointGroup",
    "adaptive_checkpoint",
    "checkpoint",
    "checkpoint_segment",
    "drop",
    "scan",
    "while_loop",
]
