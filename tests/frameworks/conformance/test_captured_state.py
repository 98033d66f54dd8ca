"""What steps keep between calls: caches, hidden states and what former calls left are found out, or do no harm."""

import functools
import types
from dataclasses import dataclass

import numpy
import pytest

import remat

from .comparison import compare_loops
from .frameworks import where_python_runs_each_step

XS = numpy.linspace(0.1, 1, 7)


def rows(framework):
    return framework.array(XS)


# What former calls left.


class Historian:
    def __init__(self, np):
        self.np, self.history, self.last = np, [], None

    def step(self, h, x):
        self.last = h
        return self.np.tanh(self.w * h + x), None


def test_what_former_calls_left_does_no_harm(framework):
    model = Historian(framework.np)

    def loss(w):
        model.w = w
        h = remat.scan(model.step, framework.array(0.3), rows(framework), slots=3)[0]
        model.history.append(h)
        model.last = h
        return h

    def fails(w):
        loss(w)
        raise RuntimeError("stop")

    w = framework.array(0.4)
    gradients = [float(framework.gradient(loss, w)[0]) for _ in range(3)]
    assert gradients == [gradients[0]] * 3 != [0.0] * 3
    with pytest.raises(RuntimeError, match="stop"):
        framework.gradient(fails, w)
    assert framework.gradient(loss, w)[0] == gradients[0]


def test_a_plain_call_after_a_failed_gradient_is_plain(framework):
    seen = []

    def step(h, x):
        return framework.np.tanh(h + x) + 0 * len(seen), None

    def fails(w):
        seen.append(w)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        framework.gradient(fails, framework.array(0.3))
    h = remat.scan(step, framework.array(0.3), rows(framework), slots=3)[0]
    assert not framework.is_traced(h)


# What would be a lost gradient is an error, or the right gradient.


def right_or_refused(framework, loss, *args, refused=(), match=""):
    """Gradients of `loss(loop, *args)` are the plain ones, or the loop is refused where the framework must do that."""
    if framework.name not in refused:
        return compare_loops(framework, loss, *args)
    with pytest.raises(remat.StepError, match=match):
        framework.gradient(lambda *args: loss(functools.partial(remat.scan, slots=2), *args), *args)
    return None


@pytest.mark.parametrize("steps", [1, 5])
def test_a_value_that_cannot_be_found_is_no_wrong_gradient(framework, steps):
    holder = {}
    hidden = types.MappingProxyType(holder)  # where nobody can write

    def loss(loop, w):
        holder["w"] = w * 1.0
        return loop(lambda h, x: (h * hidden["w"], None), w, framework.array(numpy.arange(steps)))[0]

    right_or_refused(framework, loss, framework.array(0.7), refused=("numpy",), match="could not find")


@where_python_runs_each_step
def test_a_value_that_only_the_last_step_uses_and_that_cannot_be_found(framework):
    holder = {}
    hidden = types.MappingProxyType(holder)

    def loss(loop, w):
        holder["w"] = w * 1.0
        return loop(lambda h, x: ((h * hidden["w"] if x == 4 else h * 2.0), None), w, framework.array(numpy.arange(5)))[
            0
        ]

    right_or_refused(framework, loss, framework.array(0.7), refused=("numpy",), match="could not find")


class CachedModel:
    def __init__(self, np, w):
        self.np, self.w = np, w

    @functools.cached_property
    def k(self):
        return self.np.exp(-self.w)

    def step(self, h, x):
        return h * self.k + x, None


def cached_in_a_dict(np, w):
    cache = {}

    def step(h, x):
        if "k" not in cache:
            cache["k"] = np.exp(-w)
        return h * cache["k"] + x, None

    return step


def cached_in_a_cell(np, w):
    k = None

    def step(h, x):
        nonlocal k
        if k is None:
            k = np.exp(-w)
        return h * k + x, None

    return step


def cached_by_lru_cache(np, w):
    @functools.lru_cache
    def k(_):
        return np.exp(-w)

    return lambda h, x: (h * k(1) + x, None)


def refused(framework):
    """The error of a cache; PyTorch's own where it pulls back through one graph twice."""
    if framework.name == "torch":
        return pytest.raises((remat.StepError, RuntimeError), match=r"would be lost|second time")
    return pytest.raises(remat.StepError, match="cache")


CACHES = {
    "cached property": lambda np, w: CachedModel(np, w).step,
    "dict": cached_in_a_dict,
    "cell": cached_in_a_cell,
    "lru_cache": cached_by_lru_cache,
}


@where_python_runs_each_step
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"slots": 20}, {"planner": "keep-all"}], ids=str)
@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_that_outlives_a_call_is_no_lost_gradient(framework, kind, how):
    if "planner" in how:
        how = {"plan": remat.plan(remat.Loop(7), slots=7, planner="keep-all")}

    def loss(loop, w):
        return loop(CACHES[kind](framework.np, w), framework.array(0.3), rows(framework))[0]

    if framework.name == "torch":  # what the first step leaves in the cache is an input of the others
        compare_loops(framework, loss, framework.array(0.5), **how)
    else:
        with refused(framework):
            framework.gradient(lambda w: loss(functools.partial(remat.scan, **how), w), framework.array(0.5))


@where_python_runs_each_step
@pytest.mark.parametrize("slots", [4, 12, 300])
@pytest.mark.parametrize("kind", ["lazy", "evicting"])
def test_a_cache_that_a_later_step_fills_is_an_error_not_a_lost_gradient(framework, kind, slots):
    np = framework.np

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

    def loss(loop, w):
        make = {"lazy": lazy, "evicting": evicting}[kind]
        return loop(make(w), (0, framework.array(1.0)), framework.array(numpy.full(300, 0.1)))[0][1]

    w = framework.array(0.5)
    if framework.name == "torch" and kind == "lazy":  # the list is found in the closure, and what it holds is bound
        compare_loops(framework, loss, w, tolerance=1e-12, slots=slots)
    else:
        with refused(framework):
            framework.gradient(lambda w: loss(functools.partial(remat.scan, slots=slots), w), w)


@where_python_runs_each_step
@pytest.mark.parametrize("slots", [1, 3, 7, 20])
def test_state_that_is_hidden_in_an_object_is_found_out(framework, slots):
    class Model:
        def step(self, c, x):
            self.h = framework.np.tanh(self.w * self.h + x)
            return c + self.h, None

    def loss(w):
        model = Model()
        model.w, model.h = w, framework.np.tanh(w)
        return remat.scan(model.step, framework.array(0.0), rows(framework), slots=slots)[0]

    with pytest.raises((remat.DeterminismError, remat.StepError)):
        framework.gradient(loss, framework.array(0.4))


# Dataclasses as carries.


@dataclass
class Scaled:
    w: object

    def __post_init__(self):
        self.scale = 2.0


@where_python_runs_each_step
def test_a_dataclass_carry_keeps_its_other_attributes(framework):
    def loss(loop, w):
        return loop(lambda c, x: (Scaled(c.w * c.scale * 0.4 + x), None), Scaled(w), rows(framework))[0].w

    compare_loops(framework, loss, framework.array(0.4))


@where_python_runs_each_step
def test_a_cached_property_of_a_dataclass_carry_is_made_anew(framework):
    @dataclass
    class State:
        h: object

        @functools.cached_property
        def norm(self):
            return framework.np.sum(self.h**2)

    def loss(loop, w):
        state = State(framework.array(numpy.ones(3)))
        assert state.norm == 3.0
        step = lambda s, x: (State(framework.np.tanh(w * s.h + x * s.norm)), None)  # noqa: E731
        return loop(step, state, rows(framework))[0].h[0]

    for slots in (2, 7):
        compare_loops(framework, loss, framework.array(0.4), tolerance=1e-12, slots=slots)


@where_python_runs_each_step
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"memory": "4 MiB"}], ids=str)
def test_variables_that_steps_assign_to_are_replayed_and_put_back(framework, how):
    counts = []

    def loss(loop, w):
        count, table = 0, range(1, 1 + len(XS))  # which has an item for each step, and none for one too many

        def step(h, x):
            nonlocal count
            h = framework.np.tanh(w * h / table[count] + x)
            count += 1
            return h, None

        h = loop(step, framework.array(0.3), rows(framework))[0]
        counts.append(lambda: count)
        return h

    compare_loops(framework, loss, framework.array(0.7), **how)
    assert {count() for count in counts} == {len(XS)}


factor = 1.0


@where_python_runs_each_step
def test_globals_that_a_segment_assigns_to_are_replayed_and_put_back(framework):
    def block(x):
        global factor
        factor *= 2.0
        return framework.np.sin(factor * x)

    def loss(call, w):
        global factor
        factor = 1.0
        return call(block, call(block, w))

    w = framework.array(0.7)
    found, expected = (
        framework.gradient(lambda w, call=call: loss(call, w), w) for call in (remat.checkpoint, lambda f, x: f(x))
    )
    assert found[0] == expected[0]
    assert factor == 4.0


@where_python_runs_each_step
def test_a_variable_that_only_counts_tells_how_often_a_step_runs(framework):
    calls = 0

    def step(h, x):
        nonlocal calls
        calls += 1
        return framework.np.tanh(h + x), None

    framework.gradient(lambda h: remat.scan(step, h, rows(framework), slots=2)[0], framework.array(0.3))
    assert calls == remat.plan(remat.Loop(len(XS)), slots=2).forward_steps
