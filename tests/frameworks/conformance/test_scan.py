"""Gradients through `scan` are those of the plain loop, for any program, plan and length, at the planned cost."""

import warnings

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remat
from remat.planners import Chunks, KeepAll

from .comparison import assert_same, assert_scan_is_the_plain_loop, expected_of, scan_loss
from .programs import PROGRAMS, program, random
from .trees import leaves_of


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_params_carry_and_inputs_are_those_of_the_plain_loop(framework, name):
    for slots in framework.some(3, 1, 20):
        assert_scan_is_the_plain_loop(framework, program(framework, name), slots=slots)
    assert_scan_is_the_plain_loop(framework, program(framework, name), compiled=True, memory="2 MiB")


@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_gradients_are_those_of_the_plain_loop_to_the_last_bit_and_steps_are_as_planned(framework, name):
    expected_of(framework, program(framework, name, 30))
    for slots in framework.some(5, 1, 2, 30, 60):
        made, counter = program(framework, name, 30), framework.counter()

        def counted(params, carry, x, step=made.step, counter=counter):
            counter.here(x)
            return step(params, carry, x)

        made.step = counted
        assert_scan_is_the_plain_loop(framework, made, slots=slots)
        assert counter.count == remat.plan(remat.Loop(30), slots=slots).forward_steps


def test_a_budget_in_bytes_gives_the_same_gradients(framework):
    """From the smallest that works to one in which all residuals fit."""
    made = program(framework, "lstm" if framework.runs_python else "rnn", 20)
    with pytest.raises(remat.InfeasibleError) as caught:
        assert_scan_is_the_plain_loop(framework, made, memory=10)
    for times in framework.some(1, 2, 10, 50):
        assert_scan_is_the_plain_loop(framework, made, memory=times * caught.value.minimum)


def test_plans_whose_tapes_hold_their_outputs_are_run(framework):
    """`fetch i tape` takes a state from a held tape; plans of restartable loops have it."""
    made, counter = program(framework, "rnn", 20), framework.counter()
    loop = remat.Loop(20, state=1, tape=1, restartable=True)
    plan = remat.plan(loop, slots=3, planner="mixed")
    assert any(isinstance(op, remat.ops.Fetch) and op.level == "tape" for op in plan.schedule)
    expected_of(framework, made)

    def counted(params, carry, x, step=made.step):
        counter.here(carry)
        return step(params, carry, x)

    made.step = counted
    assert_scan_is_the_plain_loop(framework, made, plan=plan, **framework.any_plan)
    assert counter.count == plan.forward_steps


@pytest.mark.parametrize(
    ("steps", "plan"),
    [
        (1, {"slots": 1}),
        (2, {"slots": 1}),
        (43, {"slots": 1}),
        (43, {"slots": 3}),
        (43, {"slots": 7}),
        (40, {"slots": 60}),
        (40, {"slots": 3, "planner": Chunks(8)}),
        (43, {"slots": 3, "planner": Chunks(8)}),
        (43, {"slots": 1, "planner": Chunks(8)}),
        (9, {"slots": 2, "planner": Chunks(8)}),
        (43, {"slots": 2, "planner": Chunks(100)}),
        (43, {"slots": 9, "planner": Chunks(2)}),
        (43, {"slots": 9, "planner": Chunks(3)}),
        (40, {"memory": 10**6, "planner": KeepAll()}),
    ],
    ids=str,
)
def test_steps_are_evaluated_as_often_as_the_plan_says(framework, steps, plan):
    made, counter = program(framework, "rnn", steps), framework.counter()

    def counted(params, carry, x):
        counter.here(carry)
        return plain(params, carry, x)

    expected_of(framework, made)
    plain, made.step = made.step, counted
    plan = remat.plan(remat.Loop(steps, tape=5), **plan)
    assert_scan_is_the_plain_loop(framework, made, plan=plan)
    assert counter.count == plan.forward_steps


@pytest.mark.parametrize(
    ("steps", "slots", "count"), [(10, 1, 55), (10, 3, 25), (100, 10, 322), (512, 64, 1470), (1000, 31, 3439)]
)
def test_known_numbers_of_evaluations(framework, steps, slots, count):
    np, counter = framework.np, framework.counter()

    def step(x, _):
        counter.here(x)
        return np.tanh(1.1 * x + 0.1), None

    framework.gradient(lambda x: remat.scan(step, x, length=steps, slots=slots)[0], framework.array(0.3))
    assert counter.count == count == remat.plan(remat.Loop(steps), slots=slots).forward_steps


@pytest.mark.parametrize(("steps", "expected"), [(6, 0.14382639340295014), (4, 0.3820445144477567)])
@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_known_derivatives(framework, steps, expected, slots):
    def last(x):
        return remat.scan(lambda x, _: (framework.np.tanh(1.1 * x + 0.1), None), x, length=steps, slots=slots)[0]

    (found,) = framework.gradient(last, framework.array(0.3))
    assert found == pytest.approx(expected, rel=1e-15)


def test_as_many_slots_as_steps(framework):
    def last(x):
        return remat.scan(lambda x, _: (framework.np.sin(x), None), x, length=1500, slots=1500)[0]

    x, expected = 1.0, 1.0
    for _ in range(1500):
        x, expected = numpy.sin(x), expected * numpy.cos(x)
    assert framework.gradient(last, framework.array(1.0))[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("planner", ["keep-all", "binomial", "chunks", "mixed", "online", "exhaustive"])
def test_every_planner_runs(framework, planner):
    plan = remat.plan(remat.Loop(7), slots=7, planner=planner)
    name = "lstm" if framework.runs_python else "rnn"
    assert_scan_is_the_plain_loop(framework, program(framework, name, 7), plan=plan, **framework.any_plan)


def test_a_plan_of_ones_own_is_run(framework):
    plan = remat.plan(remat.Loop(12), slots=3, planner="mixed")
    assert_scan_is_the_plain_loop(framework, program(framework, "rnn", 12), plan=plan, **framework.any_plan)


def test_a_saved_plan_is_run(framework, tmp_path):
    remat.plan(remat.Loop(12), slots=4).save(tmp_path / "plan.json")
    plan = remat.Plan.load(tmp_path / "plan.json")
    assert_scan_is_the_plain_loop(framework, program(framework, "rnn", 12), plan=plan)


@pytest.mark.parametrize("name", ["rnn", "ode", "odd", "complex", "lstm"])
def test_without_a_gradient_it_is_a_plain_loop_that_runs_every_step_once(framework, name):
    made, counter, traced = program(framework, name), framework.counter(), []

    def step(carry, x):
        counter.here(leaves_of(carry)[0])
        traced.append(any(map(framework.is_traced, leaves_of((carry, x)))))
        return made.step(made.params, carry, x)

    carry, ys = remat.scan(step, made.init, made.xs, length=made.length, slots=2)
    assert counter.count == made.steps
    assert not any(traced[1:])  # the first step may be recorded, to see what it closes over
    assert type(carry) is type(made.init)
    expected = framework.plain_scan(lambda c, x: made.step(made.params, c, x), made.init, made.xs, made.length)
    assert_same(framework.value(lambda: (carry, ys)), framework.value(lambda: expected), framework.last_bit)
    assert not any(map(framework.is_traced, leaves_of((carry, ys))))


@pytest.mark.parametrize("used", ["carry", "outputs"])
@pytest.mark.parametrize("planner", [Chunks(1), Chunks(4)], ids=["single steps", "ranges of 4"])
def test_only_some_results_are_used(framework, used, planner):
    made = program(framework, "rnn", 21)
    plan = remat.plan(remat.Loop(21), slots=3, planner=planner)

    def loss(loop, params, init, xs, **how):
        carry, ys = loop(lambda carry, x: made.step(params, carry, x), init, xs, **how)
        return framework.weigh(carry if used == "carry" else ys)

    args = made.params, made.init, made.xs
    found = framework.gradient(lambda *args: loss(remat.scan, *args, plan=plan), *args)
    expected = framework.gradient(lambda *args: loss(framework.plain_scan, *args), *args, compiled=True)
    assert_same(found, expected)


def test_a_row_of_the_outputs_alone_is_used(framework):
    made = program(framework, "rnn", 20)

    def loss(loop, params, init, xs, **how):
        return framework.np.sum(loop(lambda carry, x: made.step(params, carry, x), init, xs, **how)[1][4])

    args = made.params, made.init, made.xs
    found = framework.gradient(lambda *args: loss(remat.scan, *args, slots=3), *args)
    assert_same(found, framework.gradient(lambda *args: loss(framework.plain_scan, *args), *args, compiled=True))


def test_outputs_without_elements(framework):
    np = framework.np

    def loss(loop, h, **how):
        last, ys = loop(lambda h, _: (np.tanh(h), h[:0]), h, length=6, **how)
        return np.sum(last) + np.sum(ys)

    start = random(framework, 3, 4)
    found = framework.gradient(lambda h: loss(remat.scan, h, slots=2), start)
    assert_same(found, framework.gradient(lambda h: loss(framework.plain_scan, h), start))


@pytest.mark.parametrize("k", [0, 1, 2], ids=["parameters", "carry", "inputs"])
def test_gradients_may_be_asked_for_a_part(framework, k):
    made = program(framework, "rnn")
    args = [made.params, made.init, made.xs]
    ours = scan_loss(framework, made.step, remat.scan, slots=3)
    found = framework.gradient(lambda part: ours(*args[:k], part, *args[k + 1 :]), args[k])
    assert_same(found, [expected_of(framework, made)[1][k]])


def test_an_unused_carry_with_an_infinite_slope_is_what_it_is_in_the_plain_loop(framework):
    np = framework.np

    def loss(loop, x, **how):
        return np.sum(loop(lambda c, _: (np.sqrt(c * 0.0), c), x, length=1, **how)[1])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = framework.gradient(lambda x: loss(remat.scan, x, slots=1), framework.array(2.0))
        (expected,) = framework.gradient(lambda x: loss(framework.plain_scan, x), framework.array(2.0))
    numpy.testing.assert_array_equal(found, expected)
    assert numpy.isnan(found) if framework.name == "jax" else found == 1.0  # lax.scan pulls zeros back


def test_weights_that_are_used_more_than_once(framework):
    np = framework.np
    args = random(framework, 0, 4, 4), random(framework, 1, 2, 4), random(framework, 2, 15, 2, 4)

    def step(w, h, x):
        h = np.tanh(np.dot(h, w) + np.dot(x, w) + np.dot(h * x, w.T))
        return h, h

    expected = framework.gradient(scan_loss(framework, step, framework.plain_scan), *args, compiled=True)
    for slots in framework.some(3, 1, 15):
        found = framework.gradient(scan_loss(framework, step, remat.scan, slots=slots), *args)
        assert_same(found, expected, 0.0 if framework.name == "torch" else 1e-13)


def test_the_jacobian_sweeps_again_for_every_row(framework):
    w = random(framework, 7, 3, 3)

    def last(h, loop, **how):
        return loop(lambda h, _: (framework.np.tanh(framework.np.dot(h, w)), None), h, length=9, **how)[0]

    h = framework.array([0.1, -0.4, 0.3])
    found = framework.jacobian(lambda h: last(h, remat.scan, slots=3), h)
    assert_same([found], [framework.jacobian(lambda h: last(h, framework.plain_scan), h)])


def test_a_pullback_may_be_called_twice_and_sweeps_again(framework):
    counter = framework.counter()

    def last(h, loop, **how):
        def step(h, x):
            counter.here(h)
            return framework.np.tanh(h * 1.1 + x), None

        return loop(step, h, framework.array(numpy.linspace(0, 1, 20)), **how)[0]

    h, bar = framework.array([0.1, -0.4]), framework.array([1.0, 2.0])
    pull = framework.vjp(lambda h: last(h, remat.scan, slots=3), h)
    first, planned = framework.to_numpy(pull(bar)), remat.plan(remat.Loop(20), slots=3).forward_steps
    assert counter.count == planned
    assert_same([framework.to_numpy(pull(bar))], [first], 0.0)
    assert counter.count == planned + (planned if framework.runs_python else planned - 20)
    assert_same([framework.to_numpy(pull(2 * bar))], [2 * first])
    assert_same([first], [framework.to_numpy(framework.vjp(lambda h: last(h, framework.plain_scan), h)(bar))])


def test_two_loops_in_one_program_and_one_inside_the_other(framework):
    np = framework.np

    def outer(h, w, loop, **how):
        def inner(h, w):
            return loop(lambda h, _: (np.tanh(np.dot(h, w)), h), h, length=5, **how)[0]

        return loop(lambda h, _: (inner(h, w * 0.9) + h, None), h, length=6, **how)[0]

    def loss(h, w, loop, **how):
        return np.sum(outer(outer(h, w, loop, **how), np.sin(w), loop, **how) ** 2)

    args = framework.array([0.3, 0.7]), framework.array([[0.3, -0.2], [0.5, 0.1]])
    expected = framework.gradient(lambda h, w: loss(h, w, framework.plain_scan), *args, compiled=True)
    for slots in framework.some(2, 40):
        assert_same(framework.gradient(lambda h, w, n=slots: loss(h, w, remat.scan, slots=n), *args), expected)


def test_a_segment_inside_the_step(framework):
    np = framework.np

    def step(w, h, x, block):
        return block(lambda h, x: np.tanh(np.dot(h, w) + x), h, x), h

    args = random(framework, 0, 3, 3), random(framework, 1, 3), random(framework, 2, 11, 3)
    found = framework.gradient(
        scan_loss(framework, lambda w, h, x: step(w, h, x, remat.checkpoint), remat.scan, slots=3), *args
    )
    plain = scan_loss(framework, lambda w, h, x: step(w, h, x, lambda f, *a: f(*a)), framework.plain_scan)
    assert_same(found, framework.gradient(plain, *args, compiled=True))


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from(["lstm", "rnn", "ode", "odd"]))
@settings(max_examples=40, deadline=None)
def test_random_lengths_and_slots(framework, steps, slots, name):
    if not framework.runs_python:  # where each length of inputs is another program to compile
        steps, slots, name = (1, 7, 40)[steps % 3], (1, 5)[slots % 2], "ode"
    assert_scan_is_the_plain_loop(framework, program(framework, name, steps), slots=slots)
