"""What the conformance tests need of a framework, so that each test is written once and runs on all of them."""

import abc
import contextlib

import numpy

from .trees import flatten, leaves_of

__all__ = ["Adapter", "Counter", "Log"]


class Counter:
    """Counts evaluations of a step that calls `here` with an array of its carry.

    It has slots: attributes in a `__dict__` are put back after a recomputation, which then does not count.
    """

    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def here(self, value):
        self.calls += 1

    @property
    def count(self):
        return self.calls


class Log:
    """Entries that stay, also those of recomputed steps: slots are not put back, and neither is a tuple changed."""

    __slots__ = ("entries",)

    def __init__(self):
        self.entries = ()

    def add(self, entry):
        self.entries += (entry,)


class Adapter(abc.ABC):
    """A framework: its namespace of functions, its arrays, its derivatives, and the loop that one writes by hand.

    A loss is a function of several trees. `gradient` differentiates it by all leaves that are arrays of floats or of
    complex numbers, and gives a list of NumPy arrays, one for each of these leaves, zeros where nothing depends on it.
    """

    name: str  # what remat.profile calls it
    np: object  # sin, tanh, sum, dot, stack, ... as NumPy names them
    exact: tuple  # the programs whose gradients are the plain ones to the last bit
    last_bit = 0.0  # how far a gradient may be from the plain one if all sums are made in the same order
    any_plan: dict  # the options of remat.scan with which plans of every planner can be run
    generators: dict  # how a step may draw random numbers from global or private generators, by name
    has_zero_steps = False  # whether a loop may have no steps

    # Python runs the step in each evaluation. JAX runs Python while it traces, and then only what it traced: nothing
    # that Python does in a step can differ from evaluation to evaluation, and no value can be looked at.
    runs_python = True

    @property
    def own(self):
        """The framework's own module, whose functions have no lines in the tests."""
        return self.np

    @contextlib.contextmanager
    def settings(self, quick=True):
        """What holds during one test; `quick` where only numbers matter, and not what is allocated for them."""
        yield

    @abc.abstractmethod
    def array(self, value, dtype="float64"):
        """An array of the framework."""

    @abc.abstractmethod
    def to_numpy(self, array):
        """The values of an array or number, whether or not it is traced."""

    @abc.abstractmethod
    def value_and_gradient(self, loss, *args, compiled=False):
        """The value of a loss and its gradients; `compiled` as a whole, where the framework can do that."""

    def gradient(self, loss, *args, compiled=False):
        return self.value_and_gradient(loss, *args, compiled=compiled)[1]

    @abc.abstractmethod
    def value(self, function, *args):
        """The leaves of `function(*args)` in NumPy, without a gradient."""

    def outline(self, function):
        """`function()`, or only what it is made of where that can be known without computing it."""
        return function()

    def compiled(self, function):
        """The function as one program, where the framework makes such."""
        return function

    @abc.abstractmethod
    def grad(self, function):
        """The gradient of a function of one array, which can itself be differentiated."""

    @abc.abstractmethod
    def jvp(self, function, x, tangent):
        """The derivative of a function of one array along a tangent, by forward mode."""

    @abc.abstractmethod
    def vjp(self, function, x):
        """A function that pulls a cotangent of `function(x)` back, and may be called several times."""

    @abc.abstractmethod
    def jacobian(self, function, x):
        """The Jacobian of a function of one array, by reverse mode."""

    @abc.abstractmethod
    def hessian(self, function, x):
        """The Hessian of a function of one array, in the order of modes that the framework recommends."""

    @abc.abstractmethod
    def plain_scan(self, step, init, xs=None, length=None):
        """What `remat.scan` stands for: the loop that one writes by hand."""

    def plain_while(self, cond, body, init, max_steps=None):
        """What `remat.while_loop` stands for."""
        carry, steps = init, 0
        while steps != max_steps and cond(carry):
            carry, steps = body(carry), steps + 1
        return carry

    def dataclass(self, cls):
        """The same dataclass, as one that may be a carry."""
        return cls

    def counter(self):
        return Counter()

    def counters(self, number):
        """So many counters, each of its own."""
        return [Counter() for _ in range(number)]

    def some(self, *values):
        """All of these values, or the first alone where a program is compiled for each, which takes a second."""
        return values if self.runs_python else values[:1]

    @abc.abstractmethod
    def peak(self, function, *args):
        """The most bytes that the gradient of a loss takes beside what was there before."""

    @abc.abstractmethod
    def storage(self, array):
        """An object that lives as long as the numbers of an array, for weak references; None where nothing is held."""

    def is_traced(self, value):
        """Whether derivatives are recorded through a value."""
        return False

    @abc.abstractmethod
    def is_differentiable(self, leaf):
        """Whether gradients flow to a leaf: an array of floats or complex numbers."""

    def split(self, args):
        """The differentiable leaves of arguments, and a function that puts others into their places."""
        leaves, build = flatten(tuple(args))
        places = [k for k, leaf in enumerate(leaves) if self.is_differentiable(leaf)]

        def back(values):
            full = list(leaves)
            for place, value in zip(places, values, strict=True):
                full[place] = value
            return build(full)

        return [leaves[place] for place in places], back

    def weigh(self, value):
        """A number that depends on all floats of a tree, each with another weight."""
        total = 0.0
        for k, leaf in enumerate(leaves_of(value)):
            dtype = str(getattr(leaf, "dtype", type(leaf).__name__))
            if "complex" in dtype:
                leaf = self.np.sin(self.np.real(leaf)) + self.np.imag(leaf) ** 2
            if "float" in dtype or "complex" in dtype:
                total = total + self.np.sum(self.np.sin(leaf) * self.weights(leaf, k))
        return total

    def weights(self, leaf, k):
        """Weights of the shape of a leaf."""
        shape = tuple(getattr(leaf, "shape", ()))
        size = int(numpy.prod(shape))
        return self.array(numpy.linspace(0.3 + k, 1.7 + k, size).reshape(shape))
