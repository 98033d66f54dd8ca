"""Whether two gradients are the same, in words."""

from typing import Any

__all__ = ["agreement"]


def agreement(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """How well gradients by name agree: bit for bit, or up to a part of the largest number of each."""
    import numpy as np

    if all(np.array_equal(found[key], expected[key]) for key in expected):
        return "equal, bit for bit"
    error = max(float(np.max(np.abs(found[k] - expected[k])) / np.max(np.abs(expected[k]))) for k in expected)
    return f"equal but for {error:.0e} of the largest"
