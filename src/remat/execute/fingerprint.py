"""Fingerprints: one float per array, to compare a recomputed state with the first one without keeping that.

A fingerprint is a weighted sum of the array's elements. The weights lie between 0.5 and 1.5 and are all different (the
fractional parts of multiples of the golden ratio), so that permuted elements change the sum. Arrays of more than 4096
elements are summed in rows of 4096, and the row sums are summed in the same way.

What it can miss: changes that cancel in the weighted sum, which is improbable, as programs do not know the weights; and
changes smaller than the tolerance times the sum of all absolute values, such as one small element of a large array.

`tolerance_of` is eps^(3/4) of the dtype for a state that was recomputed exactly as it was first computed, since threads
and devices may sum in a different order. After k steps that ran with a tape it is eps^(1/(2k)): these may have run a
different program (a fused kernel, a traced step), whose rounding errors may grow from step to step.
"""

from typing import Any

__all__ = ["LOOSE", "fingerprint", "other_values", "relative_difference", "row_fingerprints", "tolerance_of"]

_WIDTH = 4096  # weights per dtype; longer arrays are summed in rows of this many elements
_SMALL = 2**16  # elements that may be copied at once
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly and never repeat
_weights: dict[Any, Any] = {}  # by dtype
LOOSE = 0.1  # from this tolerance on nothing is compared: over a long range a chaotic step amplifies rounding freely


def tolerance_of(eps: float, recorded: int = 0) -> float:
    """The relative difference that rounding can explain after this many recorded steps."""
    return float(eps ** (0.5 / recorded if recorded else 0.75))


def weights(dtype: Any) -> Any:
    """The weights, in this dtype: all different, so that the order of the elements matters."""
    # Imported here, so that `import remat` and planning do not load NumPy.
    import numpy as np

    cached = _weights.get(dtype)
    if cached is None:
        exact = 0.5 + np.modf(np.arange(1, _WIDTH + 1) * _GOLDEN)[0]
        cached = _weights[dtype] = exact.astype(dtype)
    return cached


def fingerprint(leaf: Any) -> float:
    """The weighted sum of an array's elements; inf and nan are replaced by numbers, so that it is always finite."""
    import numpy as np

    numbers = np.asarray(leaf)
    if numbers.dtype.kind == "c":
        numbers = np.ascontiguousarray(numbers)
        numbers = numbers.view(numbers.real.dtype)
    elif numbers.dtype.kind != "f":
        numbers = numbers.astype(np.float64)
    flat = numbers.reshape(-1)
    total = _weighted_sum(flat, weights(numbers.dtype))
    if np.isfinite(total):
        return total
    # The sum overflowed, or an element is inf or nan. Scale by the largest finite element, and replace inf and nan by
    # numbers of that order, so that two arrays with them at the same positions still have comparable fingerprints.
    flat = flat.astype(np.float64)
    largest = float(np.max(np.abs(flat), where=np.isfinite(flat), initial=0.0)) or 1.0
    finite = np.nan_to_num(flat / largest, nan=0.3, posinf=0.7, neginf=-0.7)
    return _weighted_sum(finite, weights(finite.dtype)) * min(largest, 1e300)


def row_fingerprints(stacked: Any) -> Any:
    """Two columns: the fingerprint of each row of an array, up to rounding, and that of the row's absolute values.

    Many small rows share one matrix-vector product.
    """
    import numpy as np

    size = stacked[:1].size
    count = max(1, _SMALL // max(1, size))  # rows at a time, since their absolute values are a copy
    fast, numbers = stacked.dtype.kind == "f" and size <= _WIDTH, np.full((len(stacked), 2), np.nan)
    with np.errstate(all="ignore"):
        for start in range(0, len(stacked) if fast else 0, count):
            rows = stacked[start : start + count]
            rows = rows.reshape(len(rows), size)
            factors = weights(stacked.dtype)[:size]
            numbers[start : start + count] = np.stack([rows @ factors, np.abs(rows) @ factors], 1)
        for k in np.flatnonzero(~np.isfinite(numbers[:, 0])):
            numbers[k] = fingerprint(stacked[k]), fingerprint(np.abs(stacked[k]))
    return numbers


def _weighted_sum(flat: Any, factors: Any) -> float:
    total = 0.0
    if flat.size > _WIDTH:
        rows = flat.size // _WIDTH
        # A matrix-vector product runs at memory speed. The factor distinguishes the rows from the remainder below.
        total = 0.7 * _weighted_sum(flat[: rows * _WIDTH].reshape(rows, _WIDTH) @ factors, factors)
        flat = flat[rows * _WIDTH :]
    return total + float(flat @ factors[: flat.size])


def relative_difference(
    recomputed: float, recorded: float, absolute: float, tolerance: float, noise: float = 0.0
) -> float:
    """The difference of two fingerprints relative to `absolute`, that of the absolute values; 0 within the tolerance.

    The absolute values give the scale, since the sum itself may cancel. `noise` is an absolute difference that rounding
    in the array's own inputs can explain.
    """
    if recomputed == recorded or recorded != recorded:  # nan: nothing was recorded for this state
        return 0.0
    if recomputed != recomputed:
        return float("inf")
    size = max(absolute, abs(recorded), 1e-300)
    difference = abs(recomputed - recorded)
    return difference / size if difference > tolerance * size + noise else 0.0


def other_values(difference: float) -> str:
    """The phrase in messages for a recomputed array with this `relative_difference`."""
    return f"had other values (relative difference {difference:.1g})"
