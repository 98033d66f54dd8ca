"""Estimates for loops with checkpoints, under the names and with the values that users of older tools know.

The documented keys keep their documented meaning; the true cost stands beside them, from the optimal plan.
"""

from math import inf, isqrt
from numbers import Real
from typing import Any

from remat.errors import ProblemError
from remat.planners import plan
from remat.planners.loop.save_points import even_positions, save_points
from remat.problem import Loop
from remat.units import to_count

__all__ = [
    "checkpoint_count",
    "compute_checkpoint_positions",
    "estimate_checkpoint_savings",
    "get_memory_savings",
    "save_points",
    "should_checkpoint",
]


def checkpoint_count(seq_length: int, num_checkpoints: int | None) -> tuple[int, int]:
    """The length and the number of checkpoints, √n rounded down by default, as whole numbers."""
    steps = to_count(seq_length, "seq_length")
    return steps, isqrt(steps) if num_checkpoints is None else to_count(num_checkpoints, "num_checkpoints")


def compute_checkpoint_positions(seq_length: int, num_checkpoints: int) -> list[int]:
    """Evenly spaced positions of so many checkpoints, the longer gaps last; all of them if there are enough.

    These are the positions that `checkpointed_loop` shows; what it keeps for gradients is placed optimally.

    >>> compute_checkpoint_positions(100, 5)
    [16, 32, 49, 66, 83]
    """
    steps, count = checkpoint_count(seq_length, num_checkpoints)
    if count >= steps:
        return list(range(steps))
    return even_positions(steps, count)


def get_memory_savings(seq_length: int, num_checkpoints: int | None = None) -> dict[str, Any]:
    """What so many checkpoints save (default: √n), in states.

    `recomputation_factor` is n/k, as documented of old; what truly is computed is `forward_steps`, of which
    `extra_forward_steps` are recomputed, and `peak_states` states are live at the peak of the optimal reversal.

    >>> stats = get_memory_savings(1000)
    >>> stats["num_checkpoints"], round(stats["savings_percent"], 1), round(stats["recomputation_factor"], 1)
    (31, 96.9, 32.3)
    >>> stats["forward_steps"], stats["extra_forward_steps"], stats["peak_states"]
    (3439, 2439, 34)
    """
    steps, count = checkpoint_count(seq_length, num_checkpoints)
    used = min(count, steps)
    optimal = plan(Loop(steps, tape=0), slots=max(1, used))
    ratio = steps / used if used else (inf if steps else 1.0)
    return {
        "without_checkpointing": steps,
        "with_checkpointing": used,
        "savings_percent": 100.0 * (1 - used / steps) if steps else 0.0,
        "savings_ratio": ratio,
        "num_checkpoints": used,
        "recomputation_factor": ratio,
        "peak_states": optimal.peak,
        "forward_steps": optimal.forward_steps,
        "extra_forward_steps": optimal.recomputed,
    }


def estimate_checkpoint_savings(seq_length: int, num_checkpoints: int | None = None) -> dict[str, Any]:
    """The same as `get_memory_savings`, under its other name."""
    return get_memory_savings(seq_length, num_checkpoints)


def should_checkpoint(seq_length: int, threshold: float = 0.5) -> bool:
    """Whether √n checkpoints save at least the share `threshold` of the memory of n states.

    >>> should_checkpoint(1000), should_checkpoint(1)
    (True, False)
    """
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= threshold <= 1:
        raise ProblemError(f"threshold is a share between 0 and 1, not {threshold!r:.40}")
    return bool(get_memory_savings(seq_length)["savings_percent"] >= 100.0 * threshold)
