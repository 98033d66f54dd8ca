"""A whole random program with one plain loop: ordinary statements in random order, as `remat.checkpointed` takes them.

Every second program is on NumPy and the others on PyTorch. They use what both have, so that PyTorch, which
differentiates item assignment, runs the plain form of both.
"""

import random
from collections.abc import Mapping
from functools import partial

from remat.errors import InfeasibleError, RematError
from tests.random_programs.choices import Choices
from tests.random_programs.loops_runtime import run
from tests.random_programs.loops_statements import HEADS, STATEMENTS, Statement
from tests.random_programs.source import Source
from tests.random_programs.verdict import Program

HEAD = '''"""Random program {seed}: a loop."""

import contextlib
import dataclasses
from typing import Any, NamedTuple

import {framework} as np


@dataclasses.dataclass
class Pair:
    a: Any
    b: float


class Named(NamedTuple):
    u: Any
    v: int


class Cell:
    def __init__(self, W):
        self.W, self.calls = W, 0

    def step(self, h, k):
        self.calls += 1
        return np.tanh(self.W @ h + 0.1 * k)

'''

BUDGETS = {"two": "slots=2", "four": "slots=4", "bytes": "memory='1 MiB'"}
STATE = Statement("state", "", "h = np.tanh(W @ h + 0.1 * k)", "r.append(h)")


def write_program(seed: int, without: frozenset[str] = frozenset()) -> Program:
    """The program of a seed, without some of its features."""
    c, framework = Choices(seed // 2, without), ("numpy", "torch")[seed % 2]
    order = random.Random(seed // 2).sample(STATEMENTS, len(STATEMENTS))
    chosen = [each for each in order if c.chance(each.name, 5 / len(STATEMENTS))]
    place = random.Random(f"{seed // 2} place").randint(0, len(chosen))
    body = [*chosen[:place], STATE, *chosen[place:]]
    text = Source()
    text(HEAD.format(seed=seed, framework=framework))
    head = HEADS[c.pick("head", dict.fromkeys(HEADS, 1.0) | {"range": 3.0})]
    marked = f"@remat.checkpointed({BUDGETS[c.pick('budget', dict.fromkeys(BUDGETS, 1.0))]})"
    if c.chance("in a class", 0.2):
        with text.block("class Model:"):
            with text.block("def __init__(self, W):"):
                text("self.W = W")
            text("", marked)
            with text.block("def f(self, x, W=None):"):
                text("W = self.W")
                _function(text, c, head, body)
        text("", "", "def f(x, W):", "    return Model(W).f(x)")
    else:
        text("", marked)
        with text.block("def f(x, W):"):
            _function(text, c, head, body)
    return Program(seed, "loops", text.text() + "\n", dict(c.features), 1e-9, partial(_deserves, c.features), run)


def _function(text: Source, c: Choices, head: str, body: list[Statement]) -> None:
    text("N, k0, k, r, h = 8, 0.5, 0, [], x", "gains = [1.0, 0.9, 1.1, 0.8, 1.2, 1.0, 0.7, 1.3]")
    text("W2 = np.concatenate([W, W * 0.5])", *_lines(each.before for each in body))
    if c.chance("outer loop", 0.15):
        with text.block("for epoch in range(2):"):
            _loop(text, head, body)
    elif c.chance("with around", 0.1):
        with text.block("with contextlib.nullcontext():"):
            _loop(text, head, body)
    elif c.chance("try around", 0.1):
        with text.block("try:"):
            _loop(text, head, body)
        with text.block("except KeyError:"):
            text("r.append(k)")
    else:
        _loop(text, head, body)
    text(*_lines(each.after for each in body), "return r")


def _loop(text: Source, head: str, body: list[Statement]) -> None:
    text(*_lines([head]))
    text(*(f"    {line}" for line in _lines(each.body for each in body)))
    if orelse := _lines(each.orelse for each in body):
        with text.block("else:"):
            text(*orelse)


def _lines(parts: object) -> list[str]:
    return [line for part in parts if part for line in part.split("|")]  # type: ignore[attr-defined]


def _deserves(features: Mapping[str, int], error: RematError) -> str:
    """Why a program deserves to be refused."""
    text = str(error)
    if isinstance(error, InfeasibleError):
        return "the budget is too small"
    if "call of append() changes" in text and "continue" in features:
        return "an append after a continue"
    if "call of append() changes" in text and "outer loop" in features:
        return "an append in an inner loop"
    if "and became a dict with" in text and features.keys() & {"outer loop", "head=while", "head=generator"}:
        return "a dict that grows under keys that may come again"
    if "is a function" in text or "is a builtins.function" in text:
        return "a lambda that is carried"
    return ""
