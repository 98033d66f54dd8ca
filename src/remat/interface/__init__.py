"""WHAT USERS CALL: loops, and the documented names of older systems. The framework is found from the arrays."""

from remat.interface.documented import binomial_checkpoint, checkpointed_loop
from remat.interface.estimates import (
    compute_checkpoint_positions,
    estimate_checkpoint_savings,
    get_memory_savings,
    save_points,
    should_checkpoint,
)
from remat.interface.loops import scan, while_loop

__all__ = [
    "binomial_checkpoint",
    "checkpointed_loop",
    "compute_checkpoint_positions",
    "estimate_checkpoint_savings",
    "get_memory_savings",
    "save_points",
    "scan",
    "should_checkpoint",
    "while_loop",
]
