"""Checkpointed segments: results and gradients are those of the plain call, whatever goes in and out."""

import functools
from collections import namedtuple
from dataclasses import dataclass

import numpy
import pytest

import remat

from .comparison import assert_same
from .segments import WAYS, assert_plain_gradients, plainly

A = [[1.0, 2.0], [3.0, 4.0]]
B = [[5.0, 6.0], [7.0, 8.0]]
Point = namedtuple("Point", "x y")


@dataclass
class Pair:
    left: object
    right: object


# The numbers of the documents


def test_a_segment_of_a_product_has_the_documented_gradients(framework):
    def loss(a):
        return framework.np.sum(remat.checkpoint_segment(lambda inputs: inputs[0] @ inputs[1], [a, b]))

    a, b = framework.array(A), framework.array(B)
    value, (found,) = framework.value_and_gradient(loss, a)
    assert value == 134
    assert found.tolist() == [[11, 15], [11, 15]]


def test_a_segment_of_squares_has_the_documented_gradients(framework):
    def loss(a):
        return framework.np.sum(remat.checkpoint_segment(framework.np.dot, (a, b)) ** 2)

    a, b = framework.array(A), framework.array(B)
    value, (found,) = framework.value_and_gradient(loss, a)
    assert value == 5194
    assert found.tolist() == [[454, 618], [1030, 1402]]


def test_a_group_has_several_outputs_and_gradients_for_all_inputs(framework):
    def loss(a, b):
        c, transposed = remat.CheckpointGroup().checkpoint_fn((a, b), lambda a, b: (a @ b, (a @ b).T))
        return framework.np.sum(c) + framework.np.sum(transposed)

    value, found = framework.value_and_gradient(loss, framework.array(A), framework.array(B))
    assert value == 268
    assert [each.tolist() for each in found] == [[[22, 30], [22, 30]], [[8, 8], [12, 12]]]


def test_function_and_inputs_come_in_either_order_and_under_any_older_name(framework):
    def product(inputs):
        return framework.np.sum(inputs[0] @ inputs[1])

    a, b, group = framework.array(A), framework.array(B), remat.CheckpointGroup()
    ways = [remat.checkpoint_segment, remat.checkpoint_segment_flex, remat.legacy.checkpoint_segment_flex]
    ways += [getattr(group, f"checkpoint_fn{end}") for end in ("", "_flex", "_flex2", "_flex3")]
    for way in ways:
        for loss in (lambda a, way=way: way(product, [a, b]), lambda a, way=way: way([a, b], product)):
            assert framework.gradient(loss, a)[0].tolist() == [[11, 15], [11, 15]]
    assert float(remat.checkpoint_segment(inputs=[a, b], fn=product)) == 134


def test_a_group_takes_any_number_of_inputs_and_outputs(framework):
    inputs = [framework.array(numpy.linspace(0.1, 0.9, 3) + i) for i in range(5)]

    def loss(*inputs):
        def fn(inputs):
            return [framework.np.sin(x) * i for i, x in enumerate(inputs)]

        return sum(framework.np.sum(out) for out in remat.CheckpointGroup().checkpoint_fn(list(inputs), fn))

    expected = [i * numpy.cos(framework.to_numpy(x)) for i, x in enumerate(inputs)]
    assert_same(framework.gradient(loss, *inputs), expected, 1e-15)


# What goes in and out


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_the_plain_call_in_every_way(framework, x, way):
    np = framework.np

    def fn(x, w, *, scale):
        return np.tanh(np.dot(w, np.sin(x))) * scale, np.exp(x)

    def loss(run, x, w, scale):
        first, second = run(fn, x, w, scale=scale)
        return np.sum(first**2) + np.sum(second)

    w = framework.array(numpy.random.default_rng(0).normal(size=(5, 5)))
    assert_plain_gradients(framework, loss, x, w, framework.array(1.5), run=WAYS[way], tolerance=1e-14, compiled=True)


@pytest.mark.parametrize("way", ["checkpoint", "drop", "adaptive, recomputed", "adaptive, left alone"])
def test_containers_go_in_and_out_and_gradients_flow_through_all_of_them(framework, x, way):
    np = framework.np

    def fn(pair, point, things, *, scale, flag):
        assert flag == "yes"
        assert list(things) == ["w", "n"]
        first = Pair(np.sin(pair.left) * scale, "text")
        return {"b": (Point(np.exp(point.x), None), [things["w"] * point.y, 3]), "a": first}

    def loss(run, left, x, w, scale):
        things = {"w": w, "n": [1, "2"]}
        out = run(fn, Pair(left, None), Point(x, 7.0), things, scale=scale, flag="yes")
        assert list(out) == ["b", "a"]
        assert out["a"].right == "text"
        assert out["b"][1][1] == 3
        assert out["b"][0].y is None
        return np.sum(out["a"].left + out["b"][0].x + out["b"][1][0])

    assert_plain_gradients(framework, loss, x, x + 1, x + 2, framework.array(1.5), run=WAYS[way], compiled=True)


def test_outputs_without_a_gradient_go_beside(framework, x):
    np = framework.np
    numbers = numpy.arange(3)

    def fn(x, count, none):
        assert (type(count), none) == (int, None)
        return np.sin(x), numbers, "word", None, count * 2, x > 0.5

    def loss(run, x):
        y, numbers, word, none, four, large = run(fn, x, 2, None)
        assert (word, none, four) == ("word", None, 4)
        assert numbers.tolist() == [0, 1, 2]
        return np.sum(y * large) * four

    assert_plain_gradients(framework, loss, x)


def test_an_input_may_come_out_again(framework, x):
    np = framework.np

    def loss(run, x):
        y, same = run(lambda x: (np.sin(x), x), x)
        return np.sum(y * same) + np.sum(same**2)

    assert_plain_gradients(framework, loss, x, tolerance=1e-15)  # what flows to x is added up in another order
    assert_plain_gradients(framework, lambda run, x: np.sum(run(lambda x: x, x) ** 2), x)


def test_whole_pytrees_of_parameters_are_taken(framework, x):
    np = framework.np

    def model(params, x):
        return np.tanh(np.dot(params["w"], x) + params["b"][0]) * params["b"][1][0]

    params = {"w": framework.array(numpy.eye(5) + 0.1), "b": [x, (framework.array(0.5),)]}
    assert_plain_gradients(framework, lambda run, params, x: np.sum(run(model, params, x)), params, x, tolerance=1e-14)


def test_inputs_need_not_have_a_gradient(framework, x):
    np = framework.np
    data = framework.array(numpy.ones((2, 5)))

    def loss(run, w):
        return np.sum(run(lambda data, w: np.tanh(data * w), data, w))

    assert_plain_gradients(framework, loss, x)


def test_a_part_of_the_outputs_may_be_used(framework, x):
    np = framework.np
    assert_plain_gradients(framework, lambda run, x, w: np.sum(run(lambda: (np.sin(x), np.exp(w)))[0]), x, x + 1)


def test_complex_numbers_flow_through(framework):
    np = framework.np

    def fn(z, w):
        return np.exp(1j * w) * z + np.conj(z)

    def loss(run, z, w):
        return framework.weigh(run(fn, z, w))

    z = framework.array(numpy.array([0.3 + 0.2j, -0.5 + 1j]), "complex128")
    assert_plain_gradients(framework, loss, z, framework.array([0.4, 0.7]))


# What is used without being given


class Model:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        raise NotImplementedError

    def method(self, x):
        return self(x)


def models(framework):
    """Ways to use a parameter in a function of x."""
    np = framework.np

    class Tanh(Model):
        def __call__(self, x):
            return np.tanh(self.w * x)

    class Holder:
        pass

    def attribute_of_object(w):
        holder = Holder()
        holder.inner = Holder()
        holder.inner.w = w
        return lambda x: np.tanh(holder.inner.w * x)

    def items(w):
        held = {"layers": [(w, "tanh")]}
        return lambda x: np.tanh(held["layers"][0][0] * x)

    return {
        "closure": lambda w: lambda x: np.tanh(w * x),
        "callable object": Tanh,
        "bound method": lambda w: Tanh(w).method,
        "partial": lambda w: functools.partial(lambda w, x: np.tanh(w * x), w),
        "partial by name": lambda w: functools.partial(lambda x, w: np.tanh(w * x), w=w),
        "default": lambda w: lambda x, w=w: np.tanh(w * x),
        "attribute of an object": attribute_of_object,
        "items of containers": items,
        "function inside a function": lambda w: (lambda inner: lambda x: np.tanh(inner(x)))(lambda x: w * x),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "closure",
        "callable object",
        "bound method",
        "partial",
        "partial by name",
        "default",
        "attribute of an object",
        "items of containers",
        "function inside a function",
    ],
)
@pytest.mark.parametrize("way", ["checkpoint", "drop", "adaptive, recomputed", "adaptive, left alone"])
def test_gradients_flow_to_all_that_a_function_uses(framework, x, kind, way):
    make = models(framework)[kind]

    def loss(run, w, v):
        return framework.np.sum(run(make(w), x) * v) + framework.np.sum(w * v)

    assert_plain_gradients(framework, loss, x + 1, x - 1, run=WAYS[way])


def test_objects_that_are_given_may_hold_parameters(framework, x):
    np = framework.np
    loss = lambda run, w: np.sum(run(lambda model, x: np.tanh(model.w * x), Model(w), x))  # noqa: E731
    assert_plain_gradients(framework, loss, x + 1)


def test_a_function_without_arguments_finds_what_it_closes_over(framework, x):
    counter = framework.counter()

    def loss(run, w):
        def fn():
            counter.here(w)
            return framework.np.exp(framework.np.sin(w))

        return framework.np.sum(run(fn))

    framework.gradient(functools.partial(loss, remat.checkpoint), x)
    assert counter.count == 2  # it is a segment: it is recomputed
    assert_plain_gradients(framework, loss, x)


def test_variables_that_are_assigned_again_are_what_they_were(framework, x):
    np = framework.np

    def loss(run, h):
        for scale in (1.0, 2.0, 3.0):
            h = run(lambda: np.sin(h * scale))  # noqa: B023
        return np.sum(h)

    assert_plain_gradients(framework, loss, x, compiled=True)


def test_items_that_are_exchanged_after_the_call_are_what_they_were(framework, x):
    held = {}

    def fn(x):
        return framework.np.sin(x * held["w"])

    def loss(run, x, *weights):
        for w in weights:
            held["w"] = w
            x = run(fn, x)
        return framework.np.sum(x)

    assert_plain_gradients(framework, loss, x, x + 1, x + 2, compiled=True)


def test_parameters_that_are_used_outside_too_get_the_whole_gradient(framework, x):
    np = framework.np

    def loss(run, w):
        return np.sum(run(lambda x: np.tanh(w * x), x) * np.tanh(w * x)) + np.sum(w**2)

    assert_plain_gradients(framework, loss, x + 1, tolerance=1e-15)


# Where no gradient is wanted


def test_without_gradients_it_is_a_plain_call(framework, x):
    counter = framework.counter()

    def fn(x):
        counter.here(x)
        return x

    for way in WAYS.values():
        assert way(fn, x) is x
    assert counter.count == len(WAYS)
    assert remat.checkpoint(lambda: 3) == 3


def test_a_dropped_function_keeps_its_name_and_documentation(framework, x):
    @remat.drop(check="never")
    def documented(x):
        """What it does."""
        return x

    assert (documented.__name__, documented.__doc__) == ("documented", "What it does.")
    assert documented(x) is x
    assert_same(framework.value(plainly, documented, x), framework.value(plainly, lambda x: x, x), 0.0)
