"""One LSTM cell, for the demo commands; `np` is the framework's namespace with NumPy's names."""

from typing import Any

import numpy

__all__ = ["lstm_cell", "new_cell"]


def new_cell(rng: Any, inputs: int, hidden: int) -> dict[str, Any]:
    """The initial weights of a cell."""
    return {
        "wx": rng.normal(size=(inputs, 4 * hidden)) * inputs**-0.5,
        "wh": rng.normal(size=(hidden, 4 * hidden)) / hidden**0.5,
        "b": numpy.zeros(4 * hidden),
    }


def lstm_cell(np: Any, params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """The next (output, cell) for an input."""
    output, cell = state
    gates = np.dot(x, params["wx"]) + np.dot(output, params["wh"]) + params["b"]
    size = output.shape[1]
    take, forget, show = (0.5 + 0.5 * np.tanh(0.5 * gates[:, k * size : (k + 1) * size]) for k in range(3))
    cell = forget * cell + take * np.tanh(gates[:, 3 * size :])
    return show * np.tanh(cell), cell
