"""NumPy, differentiated by autograd."""

import gc
import random
import tracemalloc
import warnings

import autograd
import autograd.numpy as np
import numpy
from autograd.tracer import getval, isbox

from .adapter import Adapter
from .trees import flatten

__all__ = ["NumPy"]


class NumPy(Adapter):
    name = "numpy"
    np = np
    exact = ("rnn",)  # products of matrices depend on where these lie in memory, in the last bit
    any_plan: dict = {}  # noqa: RUF012
    generators = {  # noqa: RUF012
        "global NumPy": lambda: numpy.random.normal,
        "global Python": lambda: lambda: random.gauss(0.0, 1.0),
        "private NumPy": lambda: numpy.random.default_rng(3).normal,
        "private RandomState": lambda: numpy.random.RandomState(3).normal,
        "private Python": lambda: (lambda rng: lambda: rng.gauss(0.0, 1.0))(random.Random(3)),
    }

    def array(self, value, dtype="float64"):
        return numpy.array(value, dtype)[()]

    def to_numpy(self, array):
        while isbox(array):
            array = getval(array)
        return numpy.asarray(array)

    def value_and_gradient(self, loss, *args, compiled=False):
        leaves, back = self.split(args)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Output seems independent of input")
            value, found = autograd.value_and_grad(lambda leaves: loss(*back(leaves)))(leaves)
        return self.to_numpy(value), [numpy.asarray(part) for part in found]

    def value(self, function, *args):
        return [self.to_numpy(leaf) for leaf in flatten(function(*args))[0]]

    def grad(self, function):
        return autograd.grad(function)

    def jvp(self, function, x, tangent):
        return autograd.make_jvp(function)(x)(tangent)[1]

    def vjp(self, function, x):
        return autograd.make_vjp(function)(x)[0]

    def jacobian(self, function, x):
        return autograd.jacobian(function)(x)

    def hessian(self, function, x):
        return autograd.hessian(function)(x)

    def plain_scan(self, step, init, xs=None, length=None):
        leaves, build = flatten(xs)
        carry, ys = init, []
        for i in range(len(leaves[0]) if leaves else length):
            carry, y = step(carry, build([leaf[i] for leaf in leaves]))
            ys.append(flatten(y))
        columns = zip(*[row for row, _ in ys], strict=True)
        return carry, ys[0][1]([np.stack(column) for column in columns])

    def peak(self, function, *args):
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            self.gradient(function, *args)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    def storage(self, array):
        value = array
        while isbox(value):
            value = getval(value)
        return value if isinstance(value, numpy.ndarray) else None

    def is_traced(self, value):
        return isbox(value)

    def is_differentiable(self, leaf):
        return isinstance(leaf, numpy.ndarray | numpy.generic) and leaf.dtype.kind in "fc"
