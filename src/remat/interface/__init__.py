"""WHAT USERS CALL: loops, segments, documented names of older systems. The framework is found from the arrays."""

from remat.interface.checkpointing import CheckpointGroup, adaptive_checkpoint, checkpoint, checkpoint_segment, drop
from remat.interface.estimates import (
    compute_checkpoint_positions,
    estimate_checkpoint_savings,
    get_memory_savings,
    save_points,
    should_checkpoint,
)
from remat.interface.looping import scan, while_loop

__all__ = [
    "CheckpointGroup",
    "adaptive_checkpoint",
    "checkpoint",
    "checkpoint_segment",
    "compute_checkpoint_positions",
    "drop",
    "estimate_checkpoint_savings",
    "get_memory_savings",
    "save_points",
    "scan",
    "should_checkpoint",
    "while_loop",
]
