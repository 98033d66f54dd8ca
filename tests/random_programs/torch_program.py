"""A whole random program on PyTorch: the user's objects, the function, and the way it is differentiated."""

from collections.abc import Callable

from remat.errors import DeterminismError, InfeasibleError, RematError, StepError
from tests.random_programs import torch_loops, torch_segments, torch_state_statements, torch_statements
from tests.random_programs.choices import Choices
from tests.random_programs.source import Source
from tests.random_programs.torch_drivers import write_driver
from tests.random_programs.torch_runtime import run
from tests.random_programs.torch_scope import Scope, TorchParts
from tests.random_programs.torch_state_statements import REFUSED_IN_LOOPS, WRITES
from tests.random_programs.verdict import Program

_STATEMENTS = (torch_statements, torch_state_statements, torch_segments, torch_loops)  # each adds its kinds

HEAD = '''"""Random program {seed} on PyTorch."""

import random
from functools import partial
from types import SimpleNamespace

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from tests.random_programs.torch_runtime import *

FLOAT = torch.{dtype}
'''

DRIVERS = {
    "backward": 5,
    "grad": 2,
    "twice": 2,
    "two losses": 1,
    "train": 2,
    "second": 2,
    "func": 1.5,
    "vmap": 0.7,
    "inference": 0.5,
}
FUNCTIONAL = frozenset({"hook", "leak", "stats", "inner", "state", "cached graph"})
BANNED = {
    "func": FUNCTIONAL,
    "vmap": FUNCTIONAL | {"data", "random"},
    "train": frozenset({"cached graph"}),
    "inference": frozenset({"cached graph", "inner"}),
}
# Kinds of statements whose steps have no second derivatives: random numbers and state.
EFFECTS = {f"do={name}" for name, kind in torch_statements.KINDS.items() if kind.tags & {"random", "state", "stats"}}
EFFECTS |= {"module hook", "arguments=cache"}


def write_program(seed: int, without: frozenset[str] = frozenset()) -> Program:
    """The program of a seed, without some of its features."""
    c = Choices(seed, without)
    driver = c.pick("driver", DRIVERS)
    autocast = driver not in ("func", "vmap") and c.chance("autocast", 0.06)
    parts, body = TorchParts(), Source()
    banned = BANNED.get(driver, frozenset()) | {"autocast" if autocast else "float64"}
    if driver not in ("backward", "grad"):
        banned |= {"losses"}
    scope = Scope(parts, body, parts.make, banned=banned)
    torch_statements.write_body(scope, c.part("before"), 2)
    unknown = frozenset({"loop_while"} if "data" in banned else ())
    nest = c.pick("nest", {"segment": 4, "loop": 4, "loop_while": 1}, unknown)
    torch_statements.KINDS[nest].write(scope, c.part("nest"))
    torch_statements.write_body(scope, c.part("after"), 2)
    text = Source()
    text(HEAD.format(seed=seed, dtype="float32" if autocast else "float64"), "", *parts.classes.lines, "")
    with text.block("def make():"):
        text("u = SimpleNamespace(start=torch.randn(3, 4), last=torch.randn(4).requires_grad_())")
        text(*parts.make.lines, "return u")
    text("", "")
    with text.block("def forward(u):"):
        start = "made" if driver == "vmap" else c.pick("start", {"data": 2, "made": 2, "leaf": 1})
        text("h = u.start * 1.0" if start == "made" else "h = u.start")
        text(*body.lines, "h = h * u.last", "return h.double().pow(2).sum(), h")
    text("", "")
    with text.block("def drive(u):"):
        if start != "data":
            text("u.start.requires_grad_()")
        write_driver(text, c, driver, parts, autocast)
    tolerance = 0.1 if autocast else 1e-10  # bfloat16 has 8 bits, and what autocast caches is summed in another order
    # Only first derivatives add up in the order of the plain loop: with doubles in its place others are right to 1e-12.
    if "carry=float32" in c.features and driver in ("second", "func", "vmap"):
        tolerance = max(tolerance, 1e-5)
    return Program(seed, "torch", text.text() + "\n", dict(c.features), tolerance, _deserves(c.features), run)


def _deserves(features: dict[str, int]) -> Callable[[RematError], str]:
    """Why a program deserves to be refused."""

    def why(error: RematError) -> str:
        if isinstance(error, InfeasibleError):
            return "the budget is too small"
        if WRITES in features and isinstance(error, StepError | DeterminismError):
            return WRITES
        if REFUSED_IN_LOOPS in features and isinstance(error, StepError):
            return REFUSED_IN_LOOPS
        if "second derivatives of a step that draws" in str(error) and features.keys() & EFFECTS:
            return "second derivatives of steps with effects"
        if "a hook that a step puts on " in str(error) and "driver=second" in features:
            return "hooks that change second derivatives"
        return ""

    return why
