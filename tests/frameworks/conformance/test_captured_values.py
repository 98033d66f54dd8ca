"""What a step closes over gets its gradient without being listed, wherever it is, and stays what it was."""

import collections
import functools

import numpy
import pytest

import remat

from .comparison import compare_loops
from .frameworks import where_python_runs_each_step
from .programs import random

XS = numpy.linspace(0.1, 1, 7)


def rows(framework):
    return framework.array(XS)


# Where captured values are.


def rnn_step(np, w, h, x):
    return np.tanh(h * w + x), h


class Cell:
    def __init__(self, np, w):
        self.np, self.w, self.calls = np, w, 0

    def step(self, h, x):
        self.calls += 1
        return rnn_step(self.np, self.w, h, x)

    def __call__(self, h, x):
        return self.step(h, x)


class Slotted:
    __slots__ = ("np", "w")

    def __init__(self, np, w):
        self.np, self.w = np, w

    def step(self, h, x):
        return rnn_step(self.np, self.w, h, x)


def with_class_attribute(np, w):
    class Rated:
        rate = w

        def step(self, h, x):
            return rnn_step(np, type(self).rate, h, x)

    return Rated().step


def with_static_method(np, w):
    class Model:
        @staticmethod
        def scaled(h):
            return h * w

        def __call__(self, h, x):
            return np.tanh(self.scaled(h) + x), h

    return Model()


def with_global(np, w):
    space = {"np": np, "w": w}
    exec("def step(h, x):\n    return np.tanh(h * w + x), h", space)
    return space["step"]


WAYS = {
    "closure": lambda np, w: lambda h, x: rnn_step(np, w, h, x),
    "nested closure": lambda np, w: (lambda f: lambda h, x: f(h, x))(lambda h, x: rnn_step(np, w, h, x)),
    "global": with_global,
    "default": lambda np, w: lambda h, x, w=w: rnn_step(np, w, h, x),
    "keyword default": lambda np, w: lambda h, x, *, w=w: rnn_step(np, w, h, x),
    "partial": lambda np, w: functools.partial(rnn_step, np, w),
    "partial keyword": lambda np, w: functools.partial(
        lambda h, x, *, pair: rnn_step(np, pair[0], h, x * pair[1]["b"]), pair=(w, {"b": 1.0})
    ),
    "bound method": lambda np, w: Cell(np, w).step,
    "callable object": lambda np, w: Cell(np, w),
    "slots": lambda np, w: Slotted(np, w).step,
    "class attribute": with_class_attribute,
    "static method": with_static_method,
    "list": lambda np, w: (lambda t: lambda h, x: rnn_step(np, t[0], h, x))([w]),
    "tuple": lambda np, w: (lambda t: lambda h, x: rnn_step(np, t[1][0], h, x))((1.0, (w, None))),
    "dict": lambda np, w: (lambda p: lambda h, x: rnn_step(np, p["layers"][0]["w"], h, x))({"layers": [{"w": w}]}),
    "ordered dict": lambda np, w: (lambda t: lambda h, x: rnn_step(np, t["p"], h, x))(collections.OrderedDict(p=w)),
    "deque": lambda np, w: (lambda t: lambda h, x: rnn_step(np, t[0], h, x))(collections.deque([w])),
    "partial of a bound method in a list": lambda np, w: (lambda fs: lambda h, x: fs[0](h, x))(
        [functools.partial(Cell(np, w).step)]
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_that_a_step_closes_over_gets_its_gradient(framework, way):
    def loss(loop, w, made):
        step = WAYS[way](framework.np, w * 1.5 if made else w)
        return framework.weigh(loop(step, framework.array(0.1), rows(framework)))

    for made in framework.some(True, False):  # a value that something else made, or the parameter itself
        compare_loops(framework, functools.partial(loss, made=made), framework.array(0.7))


DICT_WAYS = {
    "closure": lambda step, p: lambda h, x: step(p, h, x),
    "partial": lambda step, p: functools.partial(step, p),
    "tuple": lambda step, p: (lambda t: lambda h, x: step(t[1][0], h, x))((1.0, (p, None))),
    "list": lambda step, p: (lambda t: lambda h, x: step(t[0], h, x))([p]),
    "ordered dict": lambda step, p: (lambda t: lambda h, x: step(t["p"], h, x))(collections.OrderedDict(p=p)),
    "deque": lambda step, p: (lambda t: lambda h, x: step(t[0], h, x))(collections.deque([p])),
    "default": lambda step, p: lambda h, x, p=p: step(p, h, x),
}


def test_containers_of_parameters_are_found_wherever_they_are(framework):
    def step(params, h, x):
        return framework.np.tanh(h * params["a"][0] + x * params["b"]), None

    params = {"a": (framework.array(0.4), framework.array([0.0, 0.0])), "b": framework.array(0.7)}
    for way in framework.some("deque", *DICT_WAYS):
        compare_loops(
            framework,
            lambda loop, p, w=way: loop(DICT_WAYS[w](step, p), framework.array(0.3), rows(framework))[0],
            params,
        )


def test_a_value_and_what_was_made_from_it_are_not_counted_twice(framework):
    np = framework.np
    args = random(framework, 0, 3, 3), random(framework, 1, 2, 3), random(framework, 2, 11, 2, 3)

    def loss(loop, w, h, xs):
        made = np.tanh(w)
        return framework.weigh(loop(lambda h, x: (np.tanh(np.dot(h, made) + np.dot(x, w)), h), h, xs))

    for how in framework.some({"slots": 3}, {"slots": 50}, {"memory": "256 KiB"}):
        compare_loops(framework, loss, *args, **how)


@pytest.mark.parametrize("way", ["tuple", "partial", "default"])
def test_values_and_what_was_made_from_them_may_share_a_container(framework, way):
    np = framework.np

    def step(a, b, h, x):
        return np.tanh(h * a + x * b), h

    def loss(loop, w):
        pair = w, np.sin(w)
        made = {
            "tuple": lambda h, x: step(*pair, h, x),
            "partial": functools.partial(step, *pair),
            "default": lambda h, x, w=pair: step(*w, h, x),
        }[way]
        return framework.weigh(loop(made, framework.array(0.1), rows(framework)))

    compare_loops(framework, loss, framework.array(0.7))


def test_the_carry_and_the_inputs_may_be_closed_over_too(framework):
    np = framework.np

    def loss(loop, h, xs):
        return framework.weigh(loop(lambda c, x: (np.tanh(c * 0.9 + x + h * xs[2]), c), h, xs))

    compare_loops(framework, loss, framework.array(0.3), rows(framework))


def test_layers_made_in_a_python_loop_see_their_own_variables_again(framework):
    """A lambda reads its enclosing variables when it runs: in the reverse sweep they must be those of the forward."""
    np = framework.np

    def loss(loop, weights):
        xs = framework.array(numpy.linspace(0, 1, 10).reshape(10, 1))
        for index in range(3):
            scale = index + 1.0
            step = lambda h, x: (np.tanh(h * weights[index] + x * scale), h)  # noqa: E731, B023
            _, xs = loop(step, framework.array([0.0]), xs)
        return np.sum(xs**2)

    compare_loops(framework, loss, framework.array([0.5, 0.8, 0.2]))


def test_closures_are_looked_at_anew_in_each_call(framework):
    """A step that is the same function and reads another value gives another result."""
    held = {}

    def step(h, _):
        return framework.np.sin(h) * held["scale"], None

    def loss(loop, h):  # lax.scan does not look at a function twice, and gets another one each time
        return loop(step if loop != framework.plain_scan else lambda h, x: step(h, x), h, length=3)[0]

    for scale in (2.0, 3.0):
        held["scale"] = scale
        compare_loops(framework, loss, framework.array(0.5))


# Objects.


class Layer:
    def __init__(self, np, w):
        self.np, self.w, self.scale = np, w, 2.0

    def __call__(self, h):
        return self.np.tanh(h * self.w * self.scale)


def test_objects_may_hold_each_other_and_lists_themselves(framework):
    def loss(loop, w):
        layers = [Layer(framework.np, w), Layer(framework.np, w**2)]
        layers[0].next = layers[1]
        layers[1].next = layers[0]
        cycle = [w]
        cycle.append(cycle)
        step = lambda h, x: (layers[0](layers[0].next(h)) + x * cycle[0], None)  # noqa: E731
        return loop(step, framework.array(0.3), rows(framework))[0]

    compare_loops(framework, loss, framework.array(0.4))


def test_methods_base_classes_and_hidden_attributes_are_searched(framework):
    def loss(loop, w):
        class Base:
            rate = w

            def slope(self, h):
                return h * w

            def __call__(self, h, x):
                return self.slope(h) + self.half(h) + x * type(self).rate, None

        class Model(Base):
            __slots__ = ("__hidden",)

            def __init__(self):
                self.__hidden = w

            @staticmethod
            def half(h):
                return 0.5 * w * h

            def __call__(self, h, x):
                h, y = super().__call__(h, x)
                return h * self.__hidden, y

        return loop(Model(), framework.array(0.3), rows(framework))[0]

    compare_loops(framework, loss, framework.array(0.4))


def test_large_objects_nearby_do_not_hide_what_is_near(framework):
    class Node:
        def __init__(self, depth):
            self.left, self.right = (Node(depth - 1), Node(depth - 1)) if depth else (None, None)

    data = [float(i) for i in range(100_000)]

    def loss(loop, w):
        a_big_tree, params = Node(11), {"layers": [{"w": w}]}
        step = lambda h, x: (h * params["layers"][0]["w"] + x * data[3] * (a_big_tree is not None), None)  # noqa: E731
        return loop(step, framework.array(0.3), rows(framework))[0]

    compare_loops(framework, loss, framework.array(0.4))


def test_names_and_attributes_may_be_deleted_after_the_call(framework):
    class Model:
        pass

    def loss(w):
        scale = 2.0
        model = Model()
        model.w = w
        start = framework.array(1.0)
        h = remat.scan(lambda h, x: (h * scale * model.w, None), start, length=4, slots=2)[0]  # noqa: F821
        del scale
        del model.w
        return h

    assert framework.gradient(loss, framework.array(0.5))[0] == pytest.approx(4 * 2**4 * 0.5**3)


@where_python_runs_each_step
def test_lists_and_dicts_are_the_users_own(framework):
    def loss(w):
        log, params = [w], {"w": w, "calls": 0}

        def step(h, x):
            log.append(0)
            params["calls"] += 1
            return h * params["w"] * log[0], None

        h = remat.scan(step, framework.array(1.0), length=4, slots=4)[0]
        assert len(log) == 5
        assert params["calls"] == 4
        assert log[0] is w
        return h

    assert framework.gradient(loss, framework.array(1.1))[0] == pytest.approx(8 * 1.1**7)


@where_python_runs_each_step
@pytest.mark.parametrize("make", [list, lambda items: dict(enumerate(items))], ids=["list", "dict"])
def test_many_items_are_put_back_but_for_those_that_steps_replace(framework, make):
    def loss(w):
        items = make(w * k for k in range(40))
        before = [items[k] for k in range(40)]

        def step(h, _):
            items[7] = "the step's own"
            return h + items[5] * items[9], None

        h = remat.scan(step, framework.array(0.0), length=9, slots=3)[0]
        assert [k for k in range(40) if items[k] is not before[k]] == [7]
        return h

    assert framework.gradient(loss, framework.array(1.1))[0] == pytest.approx(9 * 2 * 45 * 1.1)


@where_python_runs_each_step
def test_a_bound_method_counts_each_step_once_on_its_own_object(framework):
    cells = []

    def loss(w):
        cells.append((Cell(framework.np, w), w))
        return remat.scan(cells[0][0].step, framework.array(0.1), framework.array(numpy.zeros(10)), slots=3)[0]

    framework.gradient(loss, framework.array(0.7))
    assert cells[0][0].calls == 10
    assert cells[0][0].w is cells[0][1]  # put back as it was


@where_python_runs_each_step
def test_a_helper_may_write_a_variable_that_the_step_reads(framework):
    def loss(w):
        ticks = 0

        def tick():
            nonlocal ticks
            ticks += 1

        def step(h, x):
            tick()
            return h * w + ticks, None

        plan = remat.plan(remat.Loop(5), memory=1000)
        h = remat.scan(step, framework.array(1.0), length=5, plan=plan)[0]
        assert ticks == 5
        return h

    assert framework.to_numpy(loss(framework.array(0.9))) == pytest.approx(13.73, abs=0.01)
    value, (found,) = framework.value_and_gradient(loss, framework.array(0.9))  # every step runs once
    assert value == pytest.approx(13.73, abs=0.01)
    assert found == pytest.approx(20.46, abs=0.01)
