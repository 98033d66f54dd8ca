"""WHAT USERS CALL: loops, segments, documented names of older systems. The framework is found from the arrays."""

from remat.interface.documented import binomial_checkpoint, checkpointed_loop
from remat.interface.estimates import (
    compute_checkpoint_positions,
    estimate_checkpoint_savings,
    get_memory_savings,
    save_points,
    should_checkpoint,
)
from remat.interface.loops import scan, while_loop
from remat.interface.segments import CheckpointGroup, adaptive_checkpoint, checkpoint, checkpoint_segment, drop

__all__ = [
    "CheckpointGroup",
    "adaptive_checkpoint",
    "binomial_checkpoint",
    "checkpoint",
    "checkpoint_segment",
    "checkpointed_loop",
    "compute_checkpoint_positions",
    "drop",
    "estimate_checkpoint_savings",
    "get_memory_savings",
    "save_points",
    "scan",
    "should_checkpoint",
    "while_loop",
]
