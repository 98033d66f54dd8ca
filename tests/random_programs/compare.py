"""Two runs of a program, compared value by value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from tests.random_programs.observe import Seen


@dataclass(frozen=True)
class Difference:
    """What is not as in the plain run; none at all if `what` is empty."""

    what: str = ""
    bitwise: bool = True  # whether all numbers are the same to the last bit
    zeros_for_none: int = 0  # gradients that are zeros where the plain run has none


def compare(plain: Sequence[Seen], other: Sequence[Seen], tolerance: float) -> Difference:
    """The first difference of a run from the plain one, and how exact the rest is."""
    want, got = {seen.path: seen.value for seen in plain}, {seen.path: seen.value for seen in other}
    bitwise, zeros = True, 0
    scale = _scale(want)
    for path in [*want, *(path for path in got if path not in want)]:
        if path not in want and path.endswith(".dtype") and want.get(path.removesuffix(".dtype")) == "None":
            continue  # zeros for None
        if path not in want or path not in got:
            return Difference(f"{path} is {'missing' if path in want else 'new'}: {want.get(path, got.get(path))}")
        a, b = want[path], got[path]
        if isinstance(a, str) or isinstance(b, str):
            if isinstance(a, str) and isinstance(b, str) and a == b:
                continue
            if isinstance(a, str) and a == "None" and not isinstance(b, str) and not numpy.any(b):
                zeros += 1
                continue
            return Difference(f"{path} is {_short(b)} instead of {_short(a)}")
        if a.shape != b.shape:
            return Difference(f"{path} has shape {b.shape} instead of {a.shape}")
        if numpy.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            continue
        bitwise = False
        far = _distance(a, b, scale if ".grad" in path or path.startswith("result") else 0.0)
        if not far <= tolerance:
            return Difference(f"{path} is off by {far:.2g} of its size: {_short(b)} instead of {_short(a)}")
    return Difference("", bitwise, zeros)


def _scale(values: dict[str, numpy.ndarray | str]) -> float:
    """The size of the largest gradient: what cancels to a tiny one has the rounding of what it is made of."""
    gradients = [v for path, v in values.items() if ".grad" in path and not isinstance(v, str) and v.size]
    return 1e-3 * max((float(numpy.max(numpy.abs(v))) for v in gradients), default=0.0)


def _distance(a: numpy.ndarray, b: numpy.ndarray, scale: float) -> float:
    if a.dtype.kind not in "f" or b.dtype.kind not in "f":
        return float("inf")
    if not numpy.array_equal(numpy.isnan(a), numpy.isnan(b)):
        return float("inf")
    size = max(float(numpy.nanmax(numpy.abs(a), initial=0.0)), scale)
    return float(numpy.nanmax(numpy.abs(a - b), initial=0.0)) / (size or 1.0)


def _short(value: numpy.ndarray | str) -> str:
    return " ".join(str(value if isinstance(value, str) else value.ravel()[:4]).split())[:80]
