"""The model of the demo: a character LSTM, differentiated through all its steps by autograd or by remat."""

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import autograd.numpy as np
import numpy
from autograd import value_and_grad

import remat
from remat.cli.lstm_cell import lstm_cell, new_cell
from remat.errors import ProblemError

__all__ = ["CharModel", "Training"]


class CharModel:
    """A character LSTM, and `batch` passages of text for it, each `steps` characters long."""

    def __init__(self, steps: int, hidden: int, batch: int, seed: int = 0) -> None:
        text = (files("remat.cli.demo") / "text.txt").read_text(encoding="utf-8")
        letters = sorted(set(text))
        codes = numpy.array([letters.index(letter) for letter in text])
        if steps >= len(codes) - 1:
            raise ProblemError(f"the text of the demo has {len(codes)} characters, too few for --steps {steps}")
        rng = numpy.random.default_rng(seed)
        starts = rng.integers(len(codes) - steps - 1, size=batch)
        passages = numpy.stack([codes[start : start + steps + 1] for start in starts], axis=1)
        self.xs, self.targets = passages[:-1], passages[1:]
        self.ones = numpy.eye(len(letters))
        self.state = numpy.zeros((batch, hidden)), numpy.zeros((batch, hidden))
        self.params = {
            **new_cell(rng, len(letters), hidden),
            "out": rng.normal(size=(hidden, len(letters))) / hidden**0.5,
        }

    def step(self, params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        """Process one character: the next state, and the loss of predicting the character after it."""
        now, after = x
        state = lstm_cell(np, params, state, self.ones[now])
        scores = np.dot(state[0], params["out"])
        top = np.max(scores, axis=1, keepdims=True)
        surprise = np.log(np.sum(np.exp(scores - top), axis=1)) + top[:, 0] - np.sum(scores * self.ones[after], axis=1)
        return state, np.mean(surprise)

    def plain_loss(self, params: Any) -> Any:
        """The mean loss over all steps, as a plain Python loop."""
        state, total = self.state, 0.0
        for x in zip(self.xs, self.targets, strict=True):
            state, loss = self.step(params, state, x)
            total = total + loss
        return total / len(self.xs)

    def scan_loss(self, params: Any, **how: Any) -> Any:
        """The same number by `remat.scan`, with the given budget or plan."""
        _, losses = remat.scan(lambda state, x: self.step(params, state, x), self.state, (self.xs, self.targets), **how)
        return np.sum(losses) / len(self.xs)


class Training:
    """Adam from the initial parameters, one gradient at a time, so that two trainings can alternate."""

    def __init__(self, model: CharModel, loss: Callable[[Any], Any], rate: float = 0.02) -> None:
        self.losses: list[float] = []
        self._params, self._gradient, self._rate = dict(model.params), value_and_grad(loss), rate
        self._means = {name: numpy.zeros_like(array) for name, array in model.params.items()}
        self._squares = {name: numpy.zeros_like(array) for name, array in model.params.items()}

    def step(self) -> None:
        """Compute one gradient and make one step of the optimizer."""
        value, gradients = self._gradient(self._params)
        self.losses.append(float(value))
        count = len(self.losses)
        for name, gradient in gradients.items():
            mean = self._means[name] = 0.9 * self._means[name] + 0.1 * gradient
            square = self._squares[name] = 0.999 * self._squares[name] + 0.001 * gradient**2
            move = mean / (1 - 0.9**count) / (numpy.sqrt(square / (1 - 0.999**count)) + 1e-8)
            self._params[name] = self._params[name] - self._rate * move
