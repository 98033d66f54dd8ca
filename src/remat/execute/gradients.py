"""The gradients of a loop while its reverse sweep is under way: one value that goes from pullback to pullback."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Gradients"]


@dataclass(frozen=True)
class Gradients:
    """All that a reverse sweep accumulates, as a value: `pull_back` takes one and returns the next.

    With the index of the next op, the kept states and the rng state, it is all that a reverse sweep needs to go on.
    Whoever passes a `Gradients` to `pull_back` hands it over: its buffers may be added to in place.
    """

    carry: Any  # the cotangent of the state that the sweep has come to
    outputs: Any = ()  # cotangents of the outputs of all steps; they do not change
    xs: list[Any] = field(default_factory=list)  # by input leaf: rows are written as their steps are pulled back
    captured: list[Any] = field(default_factory=list)  # by captured value: sums over the steps
