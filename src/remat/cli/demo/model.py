"""The model of the demo: a character LSTM, differentiated through all its steps by autograd or by remat."""

from importlib.resources import files
from typing import Any

import autograd.numpy as np
import numpy
from autograd import value_and_grad
from autograd.misc.optimizers import adam

import remat
from remat.cli.lstm_cell import lstm_cell, new_cell
from remat.errors import ProblemError
from remat.progress import Progress

__all__ = ["CharModel"]


class CharModel:
    """A character LSTM and a batch of text for it: `steps` characters long, `batch` passages at once."""

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
        """One character: the next state, and the loss of guessing the character after it."""
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

    def budget_loss(self, params: Any, memory: str, progress: Progress | None = None) -> Any:
        """The same number by `remat.scan`."""
        _, losses = remat.scan(
            lambda state, x: self.step(params, state, x),
            self.state,
            (self.xs, self.targets),
            memory=memory,
            progress=progress,
        )
        return np.sum(losses) / len(self.xs)

    def train(self, loss: Any, iterations: int, done: Any) -> list[float]:
        """The losses of that many iterations of Adam from the initial parameters; `done` is called after each."""
        losses: list[float] = []

        def gradient(params: Any, iteration: int) -> Any:
            value, gradients = value_and_grad(loss)(params)
            losses.append(float(value))
            done()
            return gradients

        adam(gradient, self.params, num_iters=iterations, step_size=0.02)
        return losses
