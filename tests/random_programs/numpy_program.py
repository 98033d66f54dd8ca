"""A whole random program on NumPy, differentiated by autograd."""

from remat.errors import InfeasibleError, RematError
from tests.random_programs.choices import Choices
from tests.random_programs.numpy_nests import write_body
from tests.random_programs.numpy_runtime import run
from tests.random_programs.numpy_scope import Scope
from tests.random_programs.numpy_statements import KINDS
from tests.random_programs.source import Parts, Source
from tests.random_programs.verdict import Program

HEAD = '''"""Random program {seed} on NumPy."""

import random
from functools import partial
from types import SimpleNamespace

import autograd.numpy as np
import numpy
from autograd import grad, jacobian, value_and_grad

from tests.random_programs.numpy_runtime import *


def rng_xs(*shape):
    return numpy.random.default_rng(9).normal(size=shape)


def records(length):
    table = numpy.zeros(length, dtype=[("v", float, 4), ("at", int), ("name", "U4")])
    table["v"], table["at"] = rng_xs(length, 4), numpy.arange(length)
    return table

'''

DRIVERS = {"value_and_grad": 4, "grad": 1, "twice": 1, "train": 1, "second": 1, "jacobian": 1, "inference": 1}
# Untraced arrays are really written into, also in a plain loop: the plainest result is not the same.
BANNED = {"second": frozenset({"inner"}), "jacobian": frozenset({"writes"}), "inference": frozenset({"writes"})}


def write_program(seed: int, without: frozenset[str] = frozenset()) -> Program:
    """The program of a seed, without some of its features."""
    c = Choices(seed, without)
    driver = c.pick("driver", DRIVERS)
    parts, body, text = Parts(), Source(), Source()
    scope = Scope(parts, body, banned=BANNED.get(driver, frozenset()))
    write_body(scope, c.part("before"), 2)
    nest = c.pick("nest", {"segment": 4, "loop": 5, "loop_while": 1})
    KINDS[nest].write(scope, c.part("nest"))
    write_body(scope, c.part("after"), 2)
    text(HEAD.format(seed=seed), *parts.classes.lines, "")
    with text.block("def make():"):
        text("rng = numpy.random.default_rng(1)", "u = SimpleNamespace()")
        text("p = {'start': rng.normal(size=4)}", *parts.make.lines, "return u, p")
    text("", "")
    with text.block("def forward(p, u):"):
        text("h = 1.0 * p['start']", *body.lines, "return h")
    text("", "")
    with text.block("def drive(u, p):"):
        _drive(text, driver)
    return Program(seed, "numpy", text.text() + "\n", dict(c.features), 1e-10, _deserves, run)


def _drive(text: Source, driver: str) -> None:
    text("loss = lambda p: np.sum(forward(p, u) ** 2)")
    if driver == "train":
        text("losses = []")
        with text.block("for _ in range(3):"):
            text("value, slope = value_and_grad(loss)(p)", "losses.append(value)")
            text("p.update({name: p[name] - 0.01 * slope[name] for name in p})")
        text("return losses, p")
        return
    text(
        {
            "value_and_grad": "return value_and_grad(loss)(p)",
            "grad": "return grad(loss)(p)",
            "twice": "return value_and_grad(loss)(p), grad(loss)(p)",
            "second": "return grad(lambda p: sum(np.sum(bar**2) for bar in grad(loss)(p).values()))(p)",
            "jacobian": "return jacobian(lambda start: forward({**p, 'start': start}, u))(p['start'])",
            "inference": "return forward(p, u), grad(loss)(p)",
        }[driver]
    )


def _deserves(error: RematError) -> str:
    """Why a program deserves to be refused."""
    return "the budget is too small" if isinstance(error, InfeasibleError) else ""
