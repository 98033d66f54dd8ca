"""The model of `remat lstm` on JAX, with the same parameters and step as on NumPy.

The loop is host-driven, with one compiled call per op, so that a profile sees every op.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy

from remat.cli.lstm.model import Lstm
from remat.planners import Plan
from remat.progress import Progress

__all__ = ["JaxLstm"]


class JaxLstm(Lstm):
    """The LSTM on JAX arrays, in double precision as on NumPy."""

    np: ClassVar[Any] = jnp
    scan_options: ClassVar[dict[str, Any]] = {"driven": True}

    def __init__(self, steps: int, hidden: int, batch: int) -> None:
        super().__init__(steps, hidden, batch)
        with jax.enable_x64(True):
            self.params, self.xs, self.targets, self.state = jax.tree.map(
                jnp.asarray, (self.params, self.xs, self.targets, self.state)
            )

    def gradient(self, budget: Plan | int, progress: Progress | None = None) -> tuple[float, dict[str, Any]]:
        """The loss and its gradient for all parameters."""
        with jax.enable_x64(True):
            value, gradients = jax.value_and_grad(lambda params: self.loss(params, budget, progress))(self.params)
            return float(value), {name: numpy.asarray(gradient) for name, gradient in gradients.items()}
