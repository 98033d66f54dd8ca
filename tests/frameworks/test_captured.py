"""What a step closes over, keeps, caches, writes and shares with others."""

import collections
import functools
import types
from dataclasses import dataclass

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, value_and_grad
from autograd.tracer import isbox

import remat

from .conftest import assert_same

XS = numpy.linspace(0.1, 1, 7)


def last(step, init=0.3, **how):
    return remat.scan(step, init, XS, **({"slots": 3} | how))[0]


class CachedModel:
    def __init__(self, w):
        self.w = w

    @functools.cached_property
    def k(self):
        return np.exp(-self.w)

    def step(self, h, x):
        return h * self.k + x, None


def cached_in_a_dict(w):
    cache = {}

    def step(h, x):
        if "k" not in cache:
            cache["k"] = np.exp(-w)
        return h * cache["k"] + x, None

    return step


def cached_in_a_cell(w):
    k = None

    def step(h, x):
        nonlocal k
        if k is None:
            k = np.exp(-w)
        return h * k + x, None

    return step


def cached_by_lru_cache(w):
    @functools.lru_cache
    def k(_):
        return np.exp(-w)

    return lambda h, x: (h * k(1) + x, None)


@pytest.mark.parametrize(
    "make", [lambda w: CachedModel(w).step, cached_in_a_dict, cached_in_a_cell, cached_by_lru_cache], ids=range(4)
)
@pytest.mark.parametrize("slots", [1, 3, 20])
def test_a_cache_that_outlives_a_call_is_an_error_not_a_lost_gradient(make, slots):
    with pytest.raises(remat.StepError, match="cache"):
        grad(lambda w: last(make(w), slots=slots))(0.5)
    plan = remat.plan(remat.Loop(7), slots=7, planner="keep-all")
    with pytest.raises(remat.StepError, match="cache"):
        grad(lambda w: remat.scan(make(w), 0.3, XS, plan=plan)[0])(0.5)


def test_what_a_step_leaves_behind_does_no_harm_to_the_next_call():
    seen = []

    def step(h, x):
        seen.append(h)
        return np.sin(h) + x, None

    first = grad(lambda w: last(step, w))(0.3)
    assert any(map(isbox, seen))
    assert isinstance(last(step, 0.3), float)
    assert grad(lambda w: last(step, w))(0.3) == first != 0.0


def test_a_helper_may_write_a_variable_that_the_step_reads():
    def loss(w):
        ticks = 0

        def tick():
            nonlocal ticks
            ticks += 1

        def step(h, x):
            tick()
            return h * w + ticks, None

        plan = remat.plan(remat.Loop(5), memory=1000)
        return remat.scan(step, 1.0, length=5, plan=plan)[0], ticks

    assert loss(0.9) == (pytest.approx(13.73, abs=0.01), 5)
    value, gradient = value_and_grad(lambda w: loss(w)[0])(0.9)  # all tapes are held: every step runs once
    assert value == pytest.approx(13.73, abs=0.01)
    assert gradient == pytest.approx(20.46, abs=0.01)


def test_a_condition_may_count():
    def loss(w):
        ticks = 0

        def cond(h):
            nonlocal ticks
            ticks += 1
            return ticks < 6

        return remat.while_loop(cond, lambda h: h * w, 1.0, slots=3, max_steps=100)

    assert grad(loss)(0.9) == pytest.approx(5 * 0.9**4)


def test_names_and_attributes_may_be_deleted_after_the_call():
    class Model:
        pass

    def loss(w):
        scale = 2.0
        model = Model()
        model.w = w
        h = remat.scan(lambda h, x: (h * scale * model.w, None), 1.0, length=4, slots=2)[0]  # noqa: F821
        del scale
        del model.w
        return h

    assert grad(loss)(0.5) == pytest.approx(4 * 2**4 * 0.5**3)


def test_lists_and_dicts_that_hold_boxes_are_the_users_own():
    def loss(w):
        log, params = [w], {"w": w, "calls": 0}

        def step(h, x):
            log.append(0)
            params["calls"] += 1
            return h * params["w"] * log[0], None

        h = remat.scan(step, 1.0, length=4, slots=4)[0]
        assert len(log) == 5
        assert params["calls"] == 4
        assert isbox(log[0])
        return h

    assert grad(loss)(1.1) == pytest.approx(8 * 1.1**7)


@dataclass
class Layer:
    w: object

    def __post_init__(self):
        self.scale = 2.0

    def __call__(self, h):
        return np.tanh(h * self.w * self.scale)


def test_objects_keep_what_they_are():
    def loss(w):
        layers = [Layer(w), Layer(w**2)]
        layers[0].next = layers[1]
        layers[1].next = layers[0]
        cycle = [w]
        cycle.append(cycle)
        return last(lambda h, x: (layers[0](layers[0].next(h)) + x * cycle[0], None))

    def plain(w):
        h = 0.3
        for x in XS:
            h = np.tanh(np.tanh(h * w**2 * 2.0) * w * 2.0) + x * w
        return h

    assert grad(loss)(0.4) == pytest.approx(grad(plain)(0.4), rel=1e-13)


def test_a_dataclass_carry_keeps_its_other_attributes():
    def loss(w):
        return last(lambda layer, x: (Layer(layer.w * layer.scale * 0.4 + x), None), Layer(w)).w

    def plain(w):
        for x in XS:
            w = w * 0.8 + x
        return w

    assert grad(loss)(0.4) == pytest.approx(grad(plain)(0.4))


def test_methods_and_class_attributes_are_searched():
    def loss(w):
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

        return last(Model())

    def plain(w):
        h = 0.3
        for x in XS:
            h = (h * w + 0.5 * w * h + x * w) * w
        return h

    assert grad(loss)(0.4) == pytest.approx(grad(plain)(0.4), rel=1e-13)


def test_long_lists_are_no_burden():
    data = [float(i) for i in range(100_000)]

    def loss(w):
        return last(lambda h, x: (h * w + data[3] * x, None))

    assert grad(loss)(0.5) > 0


def test_errors_of_the_users_keep_their_type_and_say_where():
    def store(h, x):
        raise ValueError("config store is read-only today")

    def corners(h, x):
        raise TypeError("BoundingBox has no corners")

    for step, kind, message in ((store, ValueError, "config store"), (corners, TypeError, "BoundingBox")):
        for run in (last, lambda step: grad(lambda w: last(step, w))(0.3)):
            with pytest.raises(kind, match=message) as caught:
                run(step)
            assert not isinstance(caught.value, remat.RematError)
            assert "in step 0" in caught.value.__notes__[0]
            assert "carry float64[]" in caught.value.__notes__[0]


def test_layers_made_in_a_python_loop_see_their_own_variables_again():
    """A lambda reads its enclosing variables when it runs: in the reverse sweep they must be those of the forward."""

    def loss(weights, scan):
        xs = numpy.linspace(0, 1, 10).reshape(10, 1)
        for index in range(3):
            scale = index + 1.0
            step = lambda h, x: (np.tanh(h * weights[index] + x * scale), h)  # noqa: E731, B023
            if scan:
                _, xs = remat.scan(step, numpy.zeros(1), xs, slots=3)
            else:
                h, ys = numpy.zeros(1), []
                for x in xs:
                    h, y = step(h, x)
                    ys.append(y)
                xs = np.stack(ys)
        return np.sum(xs**2)

    weights = numpy.array([0.5, 0.8, 0.2])
    assert_same(grad(loss)(weights, True), grad(loss)(weights, False))


class Cell:
    def __init__(self, w):
        self.w, self.calls = w, 0

    def step(self, h, x):
        self.calls += 1
        return np.tanh(h * self.w + x), h

    def __call__(self, h, x):
        return self.step(h, x)


class Slotted:
    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w

    def step(self, h, x):
        return np.tanh(h * self.w + x), h


def rnn_step(w, h, x):
    return np.tanh(h * w + x), h


def rnn_step_of_tuple(h, x, *, pair):
    return np.tanh(h * pair[0] + x * pair[1]["b"]), h


WAYS = {
    "closure": lambda w: lambda h, x: rnn_step(w, h, x),
    "nested closure": lambda w: (lambda f: lambda h, x: f(h, x))(lambda h, x: rnn_step(w, h, x)),
    "default": lambda w: lambda h, x, w=w: rnn_step(w, h, x),
    "keyword default": lambda w: lambda h, x, *, w=w: rnn_step(w, h, x),
    "partial": lambda w: functools.partial(rnn_step, w),
    "partial keyword": lambda w: functools.partial(rnn_step_of_tuple, pair=(w, {"b": 1.0})),
    "bound method": lambda w: Cell(w).step,
    "callable object": lambda w: Cell(w),
    "slots": lambda w: Slotted(w).step,
    "partial of a bound method in a list": lambda w: (lambda fs: lambda h, x: fs[0](h, x))(
        [functools.partial(Cell(w).step)]
    ),
    "dict in closure": lambda w: (lambda p: lambda h, x: rnn_step(p["layers"][0]["w"], h, x))({"layers": [{"w": w}]}),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_that_a_step_closes_over_gets_its_gradient(way):
    xs = numpy.linspace(-1, 1, 9)

    def plain(w):
        h = 0.1
        for x in xs:
            h = np.tanh(h * w + x)
        return h

    found = grad(lambda w: remat.scan(WAYS[way](w), 0.1, xs, slots=2)[0])(0.7)
    assert found == pytest.approx(grad(plain)(0.7), rel=1e-14)


def test_a_bound_method_counts_on_its_own_object():
    cells = []

    def loss(w):
        cells.append(Cell(w))
        return remat.scan(cells[0].step, 0.1, numpy.zeros(10), slots=3)[0]

    grad(loss)(0.7)
    assert cells[0].calls == 25
    assert isbox(cells[0].w)  # put back as it was


def test_a_global_is_found():
    space = {"np": np, "w": None}
    exec("def step(h, x):\n    return np.tanh(h * w + x), h", space)

    def loss(w):
        space["w"] = w
        return remat.scan(space["step"], 0.1, numpy.ones(5), slots=2)[0]

    def plain(w):
        h = 0.1
        for _ in range(5):
            h = np.tanh(h * w + 1.0)
        return h

    assert grad(loss)(0.7) == pytest.approx(grad(plain)(0.7), rel=1e-14)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("late", [False, True])
def test_a_traced_variable_that_cannot_be_found_is_an_error_not_a_wrong_gradient(steps, late):
    holder = {}
    hidden = types.MappingProxyType(holder)  # where nobody can write

    def step(h, x):
        return (h * hidden["w"] if x == steps - 1 or not late else h * 2.0), None

    def loss(w):
        holder["w"] = w
        return remat.scan(step, w, numpy.arange(steps), slots=2)[0]

    with pytest.raises(remat.StepError, match="could not find"):
        grad(loss)(0.7)


def test_large_objects_nearby_do_not_hide_what_is_near():
    class Node:
        def __init__(self, depth):
            self.left, self.right = (Node(depth - 1), Node(depth - 1)) if depth else (None, None)

    def loss(w):
        a_big_tree, params = Node(11), {"layers": [{"w": w}]}
        return last(lambda h, x: (h * params["layers"][0]["w"] + x * (a_big_tree is not None), None))

    def plain(w):
        h = 0.3
        for x in XS:
            h = h * w + x
        return h

    assert grad(loss)(0.4) == pytest.approx(grad(plain)(0.4), rel=1e-13)


def dict_step(params, h, x):
    return np.tanh(h * params["a"][0] + x * params["b"]), None


PARAM_WAYS = {
    "closure": lambda p: lambda h, x: dict_step(p, h, x),
    "partial": lambda p: functools.partial(dict_step, p),
    "tuple": lambda p: (lambda t: lambda h, x: dict_step(t[1][0], h, x))((1.0, (p, None))),
    "list": lambda p: (lambda t: lambda h, x: dict_step(t[0], h, x))([p]),
    "ordered dict": lambda p: (lambda t: lambda h, x: dict_step(t["p"], h, x))(collections.OrderedDict(p=p)),
    "deque": lambda p: (lambda t: lambda h, x: dict_step(t[0], h, x))(collections.deque([p])),
    "default": lambda p: lambda h, x, p=p: dict_step(p, h, x),
}


@pytest.mark.parametrize("way", PARAM_WAYS)
def test_boxed_containers_are_found_wherever_they_are(way):
    params = {"a": (0.4, numpy.zeros(2)), "b": 0.7}

    def plain(p):
        h = 0.3
        for x in XS:
            h, _ = dict_step(p, h, x)
        return h

    assert_same(grad(lambda p: last(PARAM_WAYS[way](p)))(params), grad(plain)(params))


class Historian:
    def __init__(self):
        self.history, self.last = [], None

    def step(self, h, x):
        self.last = h
        return np.tanh(self.w * h + x), None


def test_what_former_calls_left_does_no_harm():
    model, calls = Historian(), []

    def loss(w):
        model.w = w
        h = last(model.step)
        model.history.append(h)
        model.last = h
        return h

    def counted(w):
        calls.append(w)
        return loss(w)

    gradients = [grad(counted)(0.4) for _ in range(4)]
    assert gradients == [gradients[0]] * 4 != [0.0] * 4
    with pytest.raises(RuntimeError):
        grad(lambda w: [loss(w), raise_error()])(0.4)
    assert grad(loss)(0.4) == gradients[0]


def raise_error():
    raise RuntimeError("stop")


def test_a_plain_call_after_a_failed_gradient_is_plain():
    seen = []

    def step(h, x):
        return np.tanh(h + x) + 0 * len(seen), None

    def fails(w):
        seen.append(w)
        raise_error()

    with pytest.raises(RuntimeError):
        grad(fails)(0.3)
    assert isinstance(last(step), float)


@pytest.mark.parametrize("slots", [1, 3, 7, 20])
def test_hidden_state_is_found_out(slots):
    class Model:
        def step(self, c, x):
            self.h = np.tanh(self.w * self.h + x)
            return c + self.h, None

    def loss(w):
        model = Model()
        model.w, model.h = w, np.tanh(w)
        return last(model.step, 0.0, slots=slots)

    with pytest.raises((remat.DeterminismError, remat.StepError)):
        grad(loss)(0.4)


def test_a_cached_property_of_a_dataclass_carry_is_made_anew():
    @dataclass
    class State:
        h: object

        @functools.cached_property
        def norm(self):
            return np.sum(self.h**2)

    def loss(w, slots):
        state = State(numpy.ones(3))
        assert state.norm == 3.0
        return last(lambda s, x: (State(np.tanh(w * s.h + x * s.norm)), None), state, slots=slots).h[0]

    def plain(w):
        h = numpy.ones(3)
        for x in XS:
            h = np.tanh(w * h + x * np.sum(h**2))
        return h[0]

    for slots in (2, 7):
        assert grad(loss)(0.4, slots) == pytest.approx(grad(plain)(0.4), rel=1e-12)


@pytest.mark.parametrize("slots", [1, 3, 9])
def test_a_step_may_change_the_container_of_its_carry(slots):
    @dataclass
    class State:
        h: object

    def in_dict(c, x):
        c["h"] = np.tanh(c["h"] * 0.8 + x)
        return c, None

    def in_list(c, x):
        c[0] = np.tanh(c[0] * 0.8 + x)
        return c, None

    def in_dataclass(c, x):
        c.h = np.tanh(c.h * 0.8 + x)
        return c, None

    def plain(h):
        for x in XS:
            h = np.tanh(h * 0.8 + x)
        return h

    for step, make, take in (
        (in_dict, lambda h: {"h": h}, lambda c: c["h"]),
        (in_list, lambda h: [h], lambda c: c[0]),
        (in_dataclass, State, lambda c: c.h),
    ):
        found = grad(lambda h, s=step, m=make, t=take: t(last(s, m(h), slots=slots)))(0.3)
        assert found == pytest.approx(grad(plain)(0.3), rel=1e-13)


@pytest.mark.parametrize("slots", [4, 12, 300])
def test_a_cache_that_a_later_step_fills_is_found_out(slots):
    def lazy(w):
        cache = []

        def step(state, x):
            i, h = state
            if i >= 2:
                if not cache:
                    cache.append(np.tanh(w))
                h = cache[0] * h
            return (i + 1, np.tanh(h + x)), None

        return step

    def evicting(w):
        @functools.lru_cache
        def weight(i):
            return np.tanh(w * (1 + i / 300))

        return lambda state, x: ((state[0] + 1, np.tanh(weight(state[0]) * state[1] + x)), None)

    for make in (lazy, evicting):
        with pytest.raises(remat.StepError, match="cache"):
            grad(lambda w, m=make: remat.scan(m(w), (0, 1.0), numpy.ones(300), slots=slots)[0][1])(0.5)


def test_what_is_recorded_for_nothing_is_so_each_time():
    """Raw and recorded steps may round otherwise, and chaos makes that visible: states must come out the same again."""

    def loss(a):
        return remat.scan(lambda x, _: (a * x - a * x**2, None), 0.3, length=200, slots=4)[0]

    assert numpy.isfinite(grad(loss)(3.999))
