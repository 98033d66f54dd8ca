"""The gradients of a loop during its reverse sweep: one value that each pullback takes and returns."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Gradients"]


@dataclass(frozen=True)
class Gradients:
    """Everything that a reverse sweep accumulates, as one value: `pull_back` takes one and returns the next.

    Together with the index of the next op, the kept states and the rng state, this is all that a reverse sweep needs to
    continue. `pull_back` owns the `Gradients` passed to it and may add into its buffers in place: the caller must not
    use them afterwards.
    """

    carry: Any  # the cotangent of the state that the sweep has reached
    outputs: Any = ()  # cotangents of the outputs of all steps; they do not change
    xs: list[Any] = field(default_factory=list)  # per input leaf: row i is written when step i is pulled back
    captured: list[Any] = field(default_factory=list)  # per captured value: the sum over the steps so far
