"""Steps that differentiate themselves (energies and forces, samplers, inner updates).

The rule: steps advance without grad, which is fastest. If the first such step fails because something has no graph,
everything that it may have changed is restored, and it and all later steps run with grad enabled, on leaves that
require a gradient as in a recorded step; the graph of each step is freed at its end. The numbers are the same.

What it can miss: a step that first fails later than that, which raises the user's error with a note; and one that does
not fail but returns other numbers without grad, which the determinism check finds. The cost is one snapshot of the
replayable states for each sweep.
Steps that call `backward`: inner_backward.py.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from remat.execute.rng_state import global_rng_states
from remat.execute.state_replay import set_states
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.loops.activity import ActivityTracker, with_roots, without_graph
from remat.frameworks.torch.loops.analyzed_step import AnalyzedStep
from remat.loops.step_runner import unpack_output
from remat.pytree import flatten

__all__ = ["GradModeTrial"]

Step: TypeAlias = Callable[[Any, Any], Any]


class GradModeTrial:
    """Finds out in the first step that advances whether steps need grad."""

    def __init__(self, step: AnalyzedStep, tracker: ActivityTracker) -> None:
        self._tracker = tracker
        self._states = [*global_rng_states(), *step.replayable_states]
        # None until a step has been tried; a branch on `requires_grad` may skip a `backward` without an error.
        self._needs_grad: bool | None = None if step.inner_backward is None else True

    def wrap(self, step: Step) -> Step:
        """The step in the form in which it advances inside a no-grad context."""
        if self._needs_grad is None:
            return lambda carry, x: self._advance(step, carry, x)
        return self._with_grad(step) if self._needs_grad else step

    def _advance(self, step: Step, carry: Any, x: Any) -> Any:
        """Advance by one step; the first call finds out whether steps need grad."""
        if self._needs_grad is not None:
            return self.wrap(step)(carry, x)
        before = [(state, state.get()) for state in self._states]
        try:
            out = step(carry, x)
            self._needs_grad = False
        except RuntimeError as error:
            # PyTorch has no exception type for a missing graph, only messages, all of which contain this word.
            if "grad" not in str(error):
                raise
            # The failed attempt may have drawn random numbers or counted something, which the second must not see.
            set_states(before)
            out = self._with_grad(step)(carry, x)
            self._needs_grad = True
        return out

    def _with_grad(self, step: Step) -> Step:
        """The step run with grad, with its results detached."""

        def run(carry: Any, x: Any) -> tuple[Any, Any]:
            activity = self._tracker.activity
            with torch.enable_grad():
                carry = with_roots(flatten(carry)[1], carry, activity.carry)
                x = with_roots(flatten(x)[1], x, activity.xs)
                after, y = unpack_output(leaf_ops, step(carry, x), 0)
            (leaves, tree), (ys, y_tree) = flatten(after), flatten(y)
            return without_graph(tree, leaves, y_tree, ys)

        return run
