"""The model of `remat lstm` on NumPy: an LSTM over a long sequence, differentiated by autograd with any plan."""

from typing import Any, ClassVar

import autograd.numpy
import numpy
from autograd import value_and_grad

import remat
from remat.cli.lstm_cell import lstm_cell, new_cell
from remat.planners import Plan
from remat.progress import Progress

__all__ = ["Lstm"]


class Lstm:
    """An LSTM that predicts the running mean of its inputs, and a batch of random sequences for it."""

    np: ClassVar[Any] = autograd.numpy  # the framework's namespace with NumPy's names
    scan_options: ClassVar[dict[str, Any]] = {}  # further arguments for remat.scan
    metered: ClassVar[bool] = False  # whether a separate run measures allocations with the framework's meter

    def __init__(self, steps: int, hidden: int, batch: int, inputs: int = 8, seed: int = 0) -> None:
        rng = numpy.random.default_rng(seed)
        self.params: dict[str, Any] = {
            **new_cell(rng, inputs, hidden),
            "out": rng.normal(size=(hidden, inputs)) / hidden**0.5,
        }
        self.xs: Any = rng.normal(size=(steps, batch, inputs))
        self.targets: Any = numpy.cumsum(self.xs, axis=0) / numpy.arange(1, steps + 1)[:, None, None]
        self.state: Any = numpy.zeros((batch, hidden)), numpy.zeros((batch, hidden))

    @property
    def result_bytes(self) -> int:
        """Bytes of the outputs and gradients, which no plan can avoid; budgets include them."""
        return 8 * len(self.xs) + sum(int(array.nbytes) for array in self.params.values())

    def loss(self, params: Any, budget: Plan | int, progress: Progress | None = None) -> Any:
        """The mean squared error over all steps; a plan or a budget in bytes decides what is kept, not the value."""
        np = self.np
        how = {"plan": budget} if isinstance(budget, Plan) else {"memory": max(0, budget - self.result_bytes)}

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = lstm_cell(np, params, state, x[0])
            return state, np.mean((np.dot(state[0], params["out"]) - x[1]) ** 2)

        _, losses = remat.scan(step, self.state, (self.xs, self.targets), progress=progress, **how, **self.scan_options)
        return np.sum(losses) / len(self.xs)

    def gradient(self, budget: Plan | int, progress: Progress | None = None) -> tuple[float, dict[str, Any]]:
        """The loss and its gradient for all parameters."""
        value, gradients = value_and_grad(lambda params: self.loss(params, budget, progress))(self.params)
        return float(value), gradients
