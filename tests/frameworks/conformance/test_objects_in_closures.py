"""Objects that steps and functions close over, and that are no arrays: whatever they are, they are not touched."""

import pytest

import remat

from .comparison import assert_same
from .frameworks import where_python_runs_each_step


class AttrDict(dict):
    __getattr__ = dict.__getitem__


class Settings:
    """Looks its names up, and raises a KeyError for those that are not there."""

    def __init__(self, values):
        self.__dict__["values"] = values

    def __getattr__(self, name):
        return self.__dict__["values"][name]


class Proxy:
    """Is not connected to anything."""

    def __getattr__(self, name):
        raise RuntimeError("not connected")


class Thing:
    def __init__(self, key):
        self.table = {key: Settings({"size": 1})}


OBJECTS = {
    "AttrDict": AttrDict(scale=0.5),
    "settings": Settings({"scale": 0.5}),
    "proxy": Proxy(),
    "braces": Thing("{}"),
    "a name in braces": Thing("{name}"),
    "half a brace": Thing("a}"),
    "bytes": Thing(b"\x80\x04}\x94."),
}


@where_python_runs_each_step
@pytest.mark.parametrize("kind", OBJECTS)
def test_gradients_are_the_plain_ones_whatever_is_closed_over(framework, x, kind):
    np, given = framework.np, OBJECTS[kind]

    def fn(h):
        scale = given.scale if kind in ("AttrDict", "settings") else 0.5 + 0 * isinstance(given, Proxy)
        return np.tanh(np.sin(h) * scale)

    def plain(x):
        for _ in range(4):
            x = fn(x)
        return np.sum(x)

    def looped(x):
        return np.sum(remat.scan(lambda h, _: (fn(h), None), x, length=4, slots=2)[0])

    expected = framework.gradient(plain, x)
    assert_same(framework.gradient(looped, x), expected, 1e-14)
    assert_same(framework.gradient(lambda x: np.sum(remat.checkpoint(fn, fn(fn(fn(x))))), x), expected, 1e-14)
