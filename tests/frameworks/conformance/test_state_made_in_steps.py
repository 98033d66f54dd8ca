"""Caches, logs and objects that the first step makes and later steps change are replayed, measured or not."""

from collections import defaultdict

import numpy
import pytest

import remat

from .frameworks import where_python_runs_each_step

XS = numpy.linspace(0.1, 1, 9)


class Memory:
    """What an object of the user's holds."""

    def __init__(self):
        self.seen, self.last = 0, {"numbers": []}


class Model:
    """A model that makes its memory when it is first called."""

    def __init__(self):
        self.cache, self.table, self.memory = None, {}, None

    def a_list(self):
        if self.cache is None:
            self.cache = []
        self.cache.append(len(self.cache))
        return sum(self.cache)

    def a_dict_of_dicts(self):
        self.table.setdefault("outer", {}).setdefault("inner", [0])[0] += 1
        return self.table["outer"]["inner"][0]

    def a_defaultdict(self):
        if self.cache is None:
            self.cache = defaultdict(list)
        self.cache["a"].append(len(self.cache["b"]))
        self.cache["b"].append(1)
        return sum(self.cache["a"])

    def an_object(self):
        if self.memory is None:
            self.memory = Memory()
        self.memory.seen += 1
        self.memory.last["numbers"].append(self.memory.seen)
        return sum(self.memory.last["numbers"])

    def a_tuple_of_lists(self):
        if self.cache is None:
            self.cache = ([0], [1])
        self.cache[0][0] += 1
        self.cache[1].append(self.cache[0][0])
        return sum(self.cache[1])

    def contents(self):
        return repr((self.cache, self.table, self.memory and vars(self.memory)))


KINDS = ["a_list", "a_dict_of_dicts", "a_defaultdict", "an_object", "a_tuple_of_lists"]


def outcome(framework, kind, loop):
    model = Model()
    next_number = getattr(model, kind)

    def loss(w, h):
        return loop(lambda h, x: (framework.np.tanh(w * h + x + 0.01 * next_number()), h), h, framework.array(XS))[0]

    gradients = framework.gradient(loss, framework.array(0.7), framework.array(0.3))
    return [float(gradient) for gradient in gradients], model.contents()


@where_python_runs_each_step
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}, {"memory": "40 KiB"}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_first_step_makes_is_replayed(framework, kind, how):
    def plain(step, h, xs):
        for x in xs:
            h, y = step(h, x)
        return h, y

    ours, contents = outcome(framework, kind, lambda step, h, xs: remat.scan(step, h, xs, **how))
    expected, plain_contents = outcome(framework, kind, plain)
    assert ours == pytest.approx(expected, rel=1e-12)
    assert contents == plain_contents
