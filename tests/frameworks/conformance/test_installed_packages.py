"""A package of the user's that is installed: what its steps have in globals is captured, and replayed, as elsewhere."""

import types

import numpy
import pytest

from .comparison import compare_loops
from .frameworks import where_python_runs_each_step

XS = numpy.linspace(0.1, 1, 9)
SOURCE = """
np, weight = None, None
calls, factors = {"steps": 0}, [0]


def step(h, x):
    calls["steps"] += 1
    factors.append(len(factors) % 3)
    return np.tanh(weight * h + x) * (1 + 0.1 * factors[-1]), None


class Model:
    def __init__(self):
        self.calls = []

    def __call__(self, h, x):
        self.calls.append(len(self.calls))
        return step(h, x)
"""


@where_python_runs_each_step
@pytest.mark.parametrize("kind", ["function", "method", "object", "of a module", "of a module in one"])
def test_a_step_of_an_installed_package(framework, installed, kind):
    package = installed(SOURCE, from_folder=kind.startswith("of a"))
    package.np, model, outer = framework.np, package.Model(), types.ModuleType("outer")
    outer.package = package
    step = {
        "function": package.step,
        "method": model.__call__,
        "object": model,
        "of a module": lambda h, x: package.step(h, x),
        "of a module in one": lambda h, x: outer.package.step(h, x),
    }[kind]

    def loss(loop, w):
        package.weight, package.factors[:], package.calls["steps"] = w, [0], 0
        return loop(step, framework.array(0.3), framework.array(XS))[0]

    compare_loops(framework, loss, framework.array(0.7))
    assert package.calls["steps"] == len(XS)
    assert len(package.factors) == len(XS) + 1


def test_a_global_of_an_installed_package_is_captured(framework, installed):
    package = installed("weight, np = None, None\n\ndef step(h, x):\n    return np.tanh(weight * h + x), None\n")
    package.np = framework.np

    def loss(loop, w):
        package.weight = w
        return loop(package.step, framework.array(0.3), framework.array(XS))[0]

    compare_loops(framework, loss, framework.array(0.7))
