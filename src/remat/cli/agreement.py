"""How closely two gradients agree, as text."""

from typing import Any

__all__ = ["agreement"]


def agreement(gradient: dict[str, Any], expected: dict[str, Any]) -> str:
    """How closely gradients by name agree: bit for bit, or up to a fraction of each array's largest entry."""
    import numpy as np

    if all(np.array_equal(gradient[key], expected[key]) for key in expected):
        return "equal, bit for bit"
    error = max(float(np.max(np.abs(gradient[k] - expected[k])) / np.max(np.abs(expected[k]))) for k in expected)
    return f"equal but for {error:.0e} of the largest"
