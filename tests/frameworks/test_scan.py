"""Gradients through `scan` are those of the plain loop, for any program, budget and container."""

import warnings

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, jacobian, value_and_grad
from autograd.tracer import getval, isbox
from hypothesis import given, settings
from hypothesis import strategies as st

import remat

from .conftest import assert_same, plain_loss, remat_loss
from .programs import programs

NAMES = list(programs())


def differentiable_parts(program):
    """The program with its differentiable leaves as one list, and how to put them back."""
    from remat.pytree import flatten

    parts = (program.params, program.init, program.xs)
    leaves, tree = flatten(parts)
    floats = [i for i, leaf in enumerate(leaves) if numpy.asarray(leaf).dtype.kind in "fc"]

    def back(values):
        full = list(leaves)
        for k, i in enumerate(floats):
            full[i] = values[k]
        return tree.unflatten(full)

    return [leaves[i] for i in floats], back


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 3}, {"slots": 20}, {"memory": "2 MiB"}], ids=str)
def test_gradients_of_params_state_and_inputs_together_are_those_of_the_plain_loop(name, budget):
    program = programs()[name]
    values, back = differentiable_parts(program)

    def loss(values, run, **budget):
        return run(program.step, *back(values), program.steps, **budget)

    expected = value_and_grad(loss)(values, plain_loss)
    found = value_and_grad(loss)(values, remat_loss, **budget)
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])


@pytest.mark.parametrize("name", ["rnn"])
def test_gradients_are_bit_for_bit_those_of_autograd(name):
    program = programs(30)[name]
    values, back = differentiable_parts(program)
    expected = grad(lambda v: plain_loss(program.step, *back(v), program.steps))(values)
    found = grad(lambda v: remat_loss(program.step, *back(v), program.steps, slots=4))(values)
    assert all(numpy.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_without_gradient_it_is_a_plain_loop_that_runs_every_step_once(name):
    program = programs()[name]
    calls = []

    def step(carry, x):
        calls.append(None)
        assert not any(map(isbox, [carry, x]))
        return program.step(program.params, carry, x)

    carry, _ = remat.scan(step, program.init, program.xs, length=program.steps, slots=2)
    assert len(calls) == program.steps
    expected = plain_loss(program.step, program.params, program.init, program.xs, program.steps)
    found = remat_loss(program.step, program.params, program.init, program.xs, program.steps, slots=2)
    assert found == expected
    assert type(carry) is type(program.init)


@pytest.mark.parametrize(
    ("steps", "slots", "count"), [(10, 1, 55), (10, 3, 25), (100, 10, 322), (512, 64, 1470), (1000, 31, 3439)]
)
def test_the_step_is_run_as_often_as_the_plan_says(steps, slots, count):
    calls = []

    def step(x, _):
        calls.append(None)
        return np.tanh(1.1 * x + 0.1), None

    grad(lambda x: remat.scan(step, x, length=steps, slots=slots)[0])(0.3)
    assert len(calls) == count == remat.plan(remat.Loop(steps), slots=slots).forward_steps


@pytest.mark.parametrize(("steps", "expected"), [(6, 0.14382639340295014), (4, 0.3820445144477567)])
@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_known_derivatives(steps, expected, slots):
    assert grad(lambda x: remat.scan(lambda x, _: (np.tanh(1.1 * x + 0.1), None), x, length=steps, slots=slots)[0])(
        0.3
    ) == pytest.approx(expected, rel=1e-15)


def test_as_many_slots_as_steps():
    found = grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=5000, slots=5000)[0])(1.0)
    x, expected = 1.0, 1.0
    for _ in range(5000):
        x, expected = numpy.sin(x), expected * numpy.cos(x)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_plan_of_ones_own_is_run():
    plan = remat.plan(remat.Loop(12), slots=3, planner="mixed")
    program = programs(12)["rnn"]
    expected = grad(lambda h: plain_loss(program.step, program.params, h, program.xs, 12))(program.init)
    found = grad(lambda h: remat_loss(program.step, program.params, h, program.xs, 12, plan=plan))(program.init)
    assert_same(found, expected)


def test_every_planner_runs():
    program = programs(7)["lstm"]
    expected = grad(lambda p: plain_loss(program.step, p, program.init, program.xs, 7))(program.params)
    for name in ("keep-all", "binomial", "chunks", "mixed", "online", "exhaustive"):
        plan = remat.plan(remat.Loop(7), slots=7, planner=name)
        found = grad(lambda p, plan=plan: remat_loss(program.step, p, program.init, program.xs, 7, plan=plan))
        assert_same(found(program.params), expected)


def test_jacobian_sweeps_again_for_every_row():
    w = programs()["rnn"].params["w"]

    def last(h):
        return remat.scan(lambda h, _: (np.tanh(np.dot(h, w)), None), h, length=9, slots=3)[0]

    def plain(h):
        for _ in range(9):
            h = np.tanh(np.dot(h, w))
        return h

    h = numpy.array([0.1, -0.4, 0.3])
    assert_same(jacobian(last)(h), jacobian(plain)(h))


def test_two_loops_in_one_program_and_one_inside_the_other():
    w = numpy.array([[0.3, -0.2], [0.5, 0.1]])

    def inner(h, w, scan):
        if scan:
            return remat.scan(lambda h, _: (np.tanh(np.dot(h, w)), h), h, length=5, slots=2)[0]
        for _ in range(5):
            h = np.tanh(np.dot(h, w))
        return h

    def outer(h, w, scan):
        if scan:
            return remat.scan(lambda h, _: (inner(h, w * 0.9, True) + h, None), h, length=6, slots=2)[0]
        for _ in range(6):
            h = inner(h, w * 0.9, False) + h
        return h

    def loss(h, w, scan):
        return np.sum(outer(outer(h, w, scan), np.sin(w), scan) ** 2)

    h = numpy.array([0.3, 0.7])
    for argnum in (0, 1):
        assert_same(grad(loss, argnum)(h, w, True), grad(loss, argnum)(h, w, False))


def test_outputs_alone_and_carry_alone():
    w = 0.6

    def step(h, x):
        return np.tanh(w * h + x), np.sin(h)

    xs = numpy.linspace(0, 1, 8)

    def plain(h, which):
        ys = []
        for x in xs:
            h, y = step(h, x)
            ys.append(y)
        return h if which == "carry" else np.sum(np.stack(ys))

    for which in ("carry", "ys"):

        def loss(h, which=which):
            carry, ys = remat.scan(step, h, xs, slots=2)
            return carry if which == "carry" else np.sum(ys)

        assert grad(loss)(0.2) == pytest.approx(grad(plain)(0.2, which), rel=1e-13)


def test_an_unused_carry_with_an_infinite_slope_does_no_harm():
    def loss(x):
        _, ys = remat.scan(lambda c, _: (np.sqrt(c * 0.0), c), x, length=1, slots=1)
        return np.sum(ys)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert grad(loss)(2.0) == 1.0


def test_float32_stays_float32():
    w = numpy.float32(0.5) * numpy.eye(3, dtype=numpy.float32)
    h = numpy.ones(3, numpy.float32)

    def loss(h, w):
        carry, ys = remat.scan(lambda h, _: (np.tanh(np.dot(h, w)), h), h, length=8, slots=2)
        assert carry.dtype == ys.dtype == numpy.float32
        return np.sum(carry)

    assert grad(loss)(h, w).dtype == numpy.float32


def test_the_caller_keeps_its_arrays():
    h, xs = numpy.zeros(3), numpy.ones((6, 3))

    def step(h, x):
        h += x
        return h, None

    assert numpy.array_equal(remat.scan(step, h, xs, slots=2)[0], numpy.full(3, 6.0))
    assert not h.any()
    assert xs.flags.writeable


@pytest.mark.parametrize("budget", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
def test_a_loop_without_a_carry(budget):
    xs = numpy.linspace(0, 1, 5)
    carry, ys = remat.scan(lambda c, x: (None, np.sin(x)), None, xs, **budget)
    assert carry is None
    assert ys.shape == (5,)
    found = grad(lambda xs: np.sum(remat.scan(lambda c, x: (None, np.sin(x)), None, xs, **budget)[1]))(xs)
    numpy.testing.assert_allclose(found, numpy.cos(xs))


def test_results_can_be_written_into():
    for init in (numpy.ones(3), (numpy.ones(2), 1.0)):
        carry, _ = remat.scan(lambda h, x: (h, None), init, length=4, slots=2)
        found = []

        def loss(w, init=init, found=found):
            carry, ys = remat.scan(lambda h, x: (h, h[0] * w), init, length=4, slots=2)
            found.append(carry)
            return np.sum(ys)

        grad(loss)(1.0)
        for result in (carry, getval(found[0])):
            array = result[0] if isinstance(result, tuple) else result
            getval(array)[...] = 5.0
    x, _ = remat.scan(lambda h, x: (x, None), numpy.ones(3), numpy.ones((4, 3)), slots=2)
    x += 1


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_random_lengths_and_slots(steps, slots, seed):
    program = programs(steps)[NAMES[seed]]
    values, back = differentiable_parts(program)
    expected = grad(lambda v: plain_loss(program.step, *back(v), steps))(values)
    found = grad(lambda v: remat_loss(program.step, *back(v), steps, slots=slots))(values)
    assert_same(found, expected, 1e-11)


def test_a_python_number_gives_way_to_what_follows_it():
    xs = numpy.array([0.5, 0.25, 0.125])
    h, ys = remat.scan(lambda c, x: (c + x, c), 0, xs, slots=2)
    assert ys.tolist() == [0.0, 0.5, 0.75]
    assert h == 0.875

    def loss(xs):
        h, ys = remat.scan(lambda c, x: (c + x, c), 0, xs, slots=2)
        return np.sum(ys**2) + h

    assert grad(loss)(xs).tolist() == [3.5, 2.5, 1.0]
    assert remat.scan(lambda c, x: (c, c > 0 or 0.5), 0, xs, slots=2)[1].tolist() == [0.5, 0.5, 0.5]
    _, states = remat.checkpointed_loop(lambda x: x + 1 if x < 3 else x + 0.5, 0, 12, 4)
    assert [float(state) for state in states.values()] == [2.0, 3.5, 4.5, 6.0]

    def late(w):
        return remat.scan(lambda c, i: (c + 1 if i < 3 else c * w, None), 0, numpy.arange(6), slots=2)[0]

    assert grad(late)(0.5) == pytest.approx(9 * 0.25)


def test_dict_keys_are_held_against_each_other_even_with_none():
    with pytest.raises(remat.StepError, match="became a dict with b, h"):
        remat.scan(lambda c, x: ({"b": 5.0, "h": c["h"]}, None), {"a": None, "h": 1.0}, length=2, slots=1)
