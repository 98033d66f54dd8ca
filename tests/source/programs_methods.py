"""Methods: private attributes, `super()`, class and static methods, closures; the plain form beside the marked one."""

import autograd.numpy as np
import numpy as onp
from autograd import grad

import remat
from tests.source.corpus import INPUTS


class Base:
    def gain(self):
        return 0.5

    @classmethod
    def scale(cls):
        return 0.3


def model(mark):
    class Model(Base):
        __shared = 0.9

        def __init__(self):
            self.__gain = 0.7
            self.turns = 15

        def gain(self):
            return 2.0

        @mark
        def private(self, start, weights, bias):
            state = start
            for i in range(self.turns):
                state = np.tanh(self.__gain * state @ weights + bias * self.__shared)
            return np.sum(state)

        @mark
        def parent(self, start, weights, bias):
            state = start
            for i in range(10):
                state = np.tanh(super().gain() * state @ weights + bias)
            return np.sum(state)

        @classmethod
        @mark
        def of_class(cls, start, weights, bias):
            state = start
            for i in range(10):
                state = np.tanh(cls.scale() * state @ weights + bias)
            return np.sum(state)

        @staticmethod
        @mark
        def static(start, weights, bias, *, power=2):
            state = start
            for i in range(10):
                state = np.tanh(state @ weights + bias)
            return np.sum(state**power)

    return Model()


def enclosed(mark, factor=0.5):
    @mark
    def inner(start, weights, bias):
        state = start
        for i in range(10):
            state = np.tanh(factor * state @ weights + bias)
        return np.sum(state)

    factor = 0.25
    return inner


def calling(mark):
    @mark
    def cell(state, weights, bias):
        for j in range(4):
            state = np.tanh(state @ weights + bias * j)
        return state

    @mark
    def outer(start, weights, bias):
        state = start
        for i in range(6):
            state = cell(state, weights, bias) + 0.1 * start
        return np.sum(state)

    return outer


def same(function):
    return function


marked = remat.checkpointed(slots=3)
PLAIN, MARKED = model(same), model(marked)
METHODS = {
    "private attributes": (PLAIN.private, MARKED.private),
    "super": (PLAIN.parent, MARKED.parent),
    "class method": (PLAIN.of_class, MARKED.of_class),
    "static method": (PLAIN.static, MARKED.static),
    "closure": (enclosed(same), enclosed(marked)),
    "decorated functions that call each other": (calling(same), calling(marked)),
}


def compare(plain, ours):
    for one, other in zip(grad(ours, (0, 1, 2))(*INPUTS), grad(plain, (0, 1, 2))(*INPUTS), strict=True):
        onp.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)
