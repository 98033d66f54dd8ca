"""The model of the recomputation example: an LSTM over a long sequence, split at save points or not."""

from typing import Any

import autograd.numpy as np
import numpy
from autograd import value_and_grad

import remat
from remat.cli.cell import lstm_cell, new_cell
from remat.planners import Plan
from remat.progress import Progress

__all__ = ["Lstm"]


class Lstm:
    """An LSTM that predicts the running mean of its inputs, and a batch of random sequences for it."""

    def __init__(self, steps: int, hidden: int, batch: int, inputs: int = 8, seed: int = 0) -> None:
        rng = numpy.random.default_rng(seed)
        self.params = {**new_cell(rng, inputs, hidden), "out": rng.normal(size=(hidden, inputs)) / hidden**0.5}
        self.xs = rng.normal(size=(steps, batch, inputs))
        self.targets = numpy.cumsum(self.xs, axis=0) / numpy.arange(1, steps + 1)[:, None, None]
        self.state = numpy.zeros((batch, hidden)), numpy.zeros((batch, hidden))

    def loss(self, params: Any, plan: Plan, progress: Progress | None = None) -> Any:
        """The mean squared error over all steps. The plan says what is kept; the value is the same for every plan."""

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = lstm_cell(np, params, state, x[0])
            return state, np.mean((np.dot(state[0], params["out"]) - x[1]) ** 2)

        _, losses = remat.scan(step, self.state, (self.xs, self.targets), plan=plan, progress=progress)
        return np.sum(losses) / len(self.xs)

    def gradient(self, plan: Plan, progress: Progress | None = None) -> tuple[float, dict[str, Any]]:
        """The loss, and its gradient for all parameters."""
        value, found = value_and_grad(lambda params: self.loss(params, plan, progress))(self.params)
        return float(value), found
