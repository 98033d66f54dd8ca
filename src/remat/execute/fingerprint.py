"""One number for an array, by which another run of the same step is known again, and how far two of them are apart."""

from typing import Any

__all__ = ["fingerprint", "relative_difference"]

_WIDTH = 4096
_weights: dict[Any, Any] = {}


def weights(dtype: Any) -> Any:
    """Numbers that are all different, so that order matters."""
    import numpy as np

    found = _weights.get(dtype)
    if found is None:
        exact = 0.5 + np.modf(np.arange(1, _WIDTH + 1) * 0.6180339887498949)[0]
        found = _weights[dtype] = exact.astype(dtype)
    return found


def fingerprint(leaf: Any) -> float:
    """One number that another value of the array is most unlikely to have: a sum with weights."""
    import numpy as np

    numbers = np.asarray(leaf)
    if numbers.dtype.kind == "c":
        numbers = np.ascontiguousarray(numbers)
        numbers = numbers.view(numbers.real.dtype)
    elif numbers.dtype.kind != "f":
        numbers = numbers.astype(np.float64)
    flat = numbers.reshape(-1)
    total = _weighted(flat, weights(numbers.dtype))
    if np.isfinite(total):
        return total
    # Too large to be summed up, or not finite, for which numbers of the size of the others stand.
    flat = flat.astype(np.float64)
    largest = float(np.max(np.abs(flat), where=np.isfinite(flat), initial=0.0)) or 1.0
    finite = np.nan_to_num(flat / largest, nan=0.3, posinf=0.7, neginf=-0.7)
    return _weighted(finite, weights(finite.dtype)) * min(largest, 1e300)


def _weighted(flat: Any, factors: Any) -> float:
    total = 0.0
    if flat.size > _WIDTH:
        rows = flat.size // _WIDTH
        total = 0.7 * _weighted(flat[: rows * _WIDTH].reshape(rows, _WIDTH) @ factors, factors)
        flat = flat[rows * _WIDTH :]
    return total + float(flat @ factors[: flat.size])


def relative_difference(found: float, noted: float, sizes: float, tolerance: float) -> float:
    """How far a summary is from another, relative to the size of what was summed up; 0 where rounding explains it."""
    if found == noted or noted != noted:  # a noted nan is none: nothing was noted there
        return 0.0
    if found != found:
        return float("inf")
    far = abs(found - noted) / max(sizes, abs(noted), 1e-300)
    return far if far > tolerance else 0.0
