"""Loops that end from inside: a step returns `STOP` in place of its carry, and does not count as a step.

The rule: a `while_loop` whose condition is `until_stopped` runs until its body returns STOP. Its result is then the
state before that step, and random generators and whatever else the step changed besides its carry are set back, so
that the caller can run the same turn again. A loop that stops in its very first step raises `Stopped`: there is no
state to return gradients through, and the caller has the initial one.

What it can miss: changes that no replayable state knows of (files, other processes). The cost, for these loops only:
the versions of the generators are compared before each step, and the last segment of the loop is recomputed.
"""

from typing import Any

__all__ = ["STOP", "Stopped", "until_stopped"]


class _Stop:
    def __repr__(self) -> str:
        return "STOP"


STOP = _Stop()


class Stopped(Exception):
    """A step returned STOP; `step` is its number."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step} ended the loop")
        self.step = step


def until_stopped(carry: Any) -> bool:
    """The condition of a loop that ends when its body returns STOP."""
    return True
