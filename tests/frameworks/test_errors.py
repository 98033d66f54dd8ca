"""Bad input gets a clear error before any work is lost."""

from collections import namedtuple

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from autograd.tracer import trace_stack

import remat

Pair = namedtuple("Pair", "h c")


def step(h, x):
    return np.tanh(h + x), h


def run(step=step, init=0.1, xs=numpy.ones(5), traced=True, **how):  # noqa: B008
    how = how or {"slots": 2}
    if traced:
        return grad(lambda w: np.sum(remat.scan(lambda h, x: step(h, x), init, xs, **how)[1]) * w)(1.0)
    return remat.scan(step, init, xs, **how)


both = pytest.mark.parametrize("traced", [True, False])


@both
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "give a budget"),
        ({"slots": 2, "memory": "1 MiB"}, "not both"),
        ({"slots": 2, "plan": remat.plan(remat.Loop(5), slots=2)}, "not both"),
        ({"plan": 3}, "must be a Plan"),
        ({"slots": 2, "length": 4}, "length says 4, xs says 5"),
        ({"slots": -1}, "at least 0"),
        ({"slots": 1.5}, "whole number"),
        ({"memory": "many"}, "no size"),
        ({"memory": 1.5}, "between 0 and 1"),
        ({"slots": 2, "check": "maybe"}, "first"),
        ({"slots": 2, "progress": 3}, "update"),
    ],
)
def test_arguments_that_make_no_sense(traced, how, message):
    def loss(h):
        return np.sum(remat.scan(step, h, numpy.ones(5), **how)[1])

    with pytest.raises(remat.ProblemError, match=message):
        (grad(loss) if traced else loss)(0.1)


def test_lengths_that_do_not_agree_are_named():
    with pytest.raises(remat.ProblemError, match=r"xs\['a'\] says 5, xs\['b'\] says 4"):
        remat.scan(step, 0.1, {"a": numpy.ones(5), "b": numpy.ones(4)}, slots=2)


@pytest.mark.parametrize("xs", [numpy.ones((0, 3)), None])
def test_no_steps(xs):
    with pytest.raises(remat.ProblemError, match="0 steps"):
        remat.scan(step, 0.1, xs, length=0, slots=2)


def test_no_length():
    with pytest.raises(remat.ProblemError, match="give xs, or length="):
        remat.scan(step, 0.1, slots=2)
    with pytest.raises(remat.ProblemError, match="give xs, or length="):
        remat.scan(step, 0.1, {}, slots=2)


def test_a_plan_for_another_length():
    plan = remat.plan(remat.Loop(6), slots=2)
    with pytest.raises(remat.ProblemError, match="6 steps and the loop has 5"):
        grad(lambda h: remat.scan(step, h, numpy.ones(5), plan=plan)[0])(0.1)


def test_no_slots():
    with pytest.raises(remat.InfeasibleError, match="1 slot"):
        grad(lambda h: remat.scan(step, h, numpy.ones(5), slots=0)[0])(0.1)


def test_too_little_memory_says_how_much_is_needed_and_that_is_enough():
    calls = []

    def loss(h, memory):
        calls.clear()

        def counted(h, x):
            calls.append(None)
            return np.tanh(h + x), None

        return np.sum(remat.scan(counted, h, numpy.ones((50, 1000)), memory=memory)[0])

    with pytest.raises(remat.InfeasibleError, match="smallest that works") as error:
        grad(loss)(numpy.zeros(1000), 1000)
    assert error.value.unit == "bytes"
    assert len(calls) < 50  # only measured
    grad(loss)(numpy.zeros(1000), error.value.minimum)


@both
@pytest.mark.parametrize(
    ("init", "returned", "message"),
    [
        ((1.0, 2.0), lambda h: (h[0],), r"carry was a tuple of 2 and became a tuple of 1"),
        (Pair(1.0, 2.0), lambda h: (h.h, h.c), "carry was a Pair with h, c and became a tuple of 2"),
        ({"a": 1.0}, lambda h: {"b": h["a"]}, "carry was a dict with a and became a dict with b"),
        ([1.0, (2.0,)], lambda h: [h[0], 2.0], r"carry\[1\] was a tuple of 1 and became a single float"),
        (1.0, lambda h: (h,), "carry was an array or a number and became a tuple of 1"),
        (1.0, lambda h: None, "became None"),
        (numpy.ones(3), lambda h: numpy.ones(4), r"carry was float64\[3\] and became float64\[4\] after step 0"),
        (
            {"a": numpy.ones(2, "f4")},
            lambda h: {"a": numpy.ones(2)},
            r"carry\['a'\] was float32\[2\] and became float64\[2\]",
        ),
        (numpy.arange(3), lambda h: h * 1.5, r"int64\[3\] and became float64\[3\] .* start with float64"),
        (1.0, lambda h: "text", "carry after step 0 is a str"),
    ],
)
def test_a_carry_that_changes_its_looks(traced, init, returned, message):
    with pytest.raises(remat.StepError, match=message):
        run(lambda h, x: (returned(h), 1.0), init, traced=traced)


@both
def test_a_carry_that_changes_later(traced):
    def step(h, x):
        return (h if x < 3 else h[:2]), None

    with pytest.raises(remat.StepError, match=r"float64\[4\] and became float64\[2\] after step 3"):
        run(step, numpy.ones(4), numpy.arange(6), traced=traced)


@both
@pytest.mark.parametrize(
    ("out", "message"),
    [
        (1.0, r"must return \(carry, y\), and step 0 returned a float"),
        ((1.0, 2.0, 3.0), "returned a tuple of 3"),
        (None, "step 0 returned None"),
    ],
)
def test_a_step_that_returns_something_else(traced, out, message):
    with pytest.raises(remat.StepError, match=message):
        run(lambda h, x: out, traced=traced)


@both
def test_outputs_that_change_their_looks(traced):
    with pytest.raises(remat.StepError, match=r"y was float64\[2\] and became float64\[1\] after step 3"):
        run(lambda h, x: (h, numpy.ones(2 if x < 3 else 1)), xs=numpy.arange(5), traced=traced)
    with pytest.raises(remat.StepError, match="y was a tuple of 1 and became None"):
        run(lambda h, x: (h, (1.0,) if x < 3 else None), xs=numpy.arange(5), traced=traced)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("text", "init is a str"),
        ({"a": [1.0, object()]}, r"init\['a'\]\[1\] is an object"),
        (numpy.array(["a"]), "dtype <U1"),
        (numpy.array([None]), "dtype object"),
        (numpy.ma.ones(3), "Masked"),
    ],
)
def test_leaves_that_are_no_arrays(init, message):
    with pytest.raises(remat.StepError, match=message):
        remat.scan(step, init, numpy.ones(4), slots=2)


def test_inputs_without_rows():
    with pytest.raises(remat.StepError, match=r"xs\[1\] is a single number"):
        remat.scan(step, 0.1, (numpy.ones(4), 2.0), slots=2)


def test_functions_that_are_none():
    with pytest.raises(remat.ProblemError, match="step must be a function"):
        remat.scan(3, 0.1, numpy.ones(4), slots=2)
    with pytest.raises(remat.ProblemError, match="cond must be a function"):
        remat.while_loop(3, step, 0.1, slots=2)


def test_memory_with_levels_is_refused():
    memory = remat.Memory(levels=[remat.Level("ram", slots=2), remat.Level("disk", read=1)])
    with pytest.raises(remat.PlannerError, match="one level"):
        remat.scan(step, 0.1, numpy.ones(4), memory=memory)


def test_an_error_in_the_step_leaves_everything_as_it_was():
    def loss(w):
        box = [w]

        def step(h, x):
            if x > 2:
                raise RuntimeError("broken step")
            return h * w, None

        with pytest.raises(RuntimeError, match="broken step"):
            remat.scan(step, 1.0, numpy.arange(5), slots=2)
        assert step.__closure__[0].cell_contents is box[0]
        return w

    before = trace_stack.top
    assert grad(loss)(2.0) == 1.0
    assert trace_stack.top == before


def test_an_illegal_schedule_is_refused_at_the_op_that_breaks_it():
    from dataclasses import replace

    good = remat.plan(remat.Loop(3), slots=3)
    for text in (
        "keep 0 ram; advance 1 2",
        "advance 0 2; record 2 3; turn; pullback 3 2; fetch 0 ram",
        "record 0 3; turn; pullback 2 0",
        "record 0 2; turn",
    ):
        plan = replace(good, source=remat.Schedule.parse(text.replace("; ", "\n")))
        with pytest.raises(remat.IllegalError, match="not legal"):
            grad(lambda h, plan=plan: remat.scan(step, h, numpy.ones(3), plan=plan)[0])(0.1)
    plan = replace(good, source=remat.Schedule.parse("keep 0 ram\nrecord 0 3\nturn\npullback 3 0"))
    with pytest.raises(remat.IllegalError, match="1 states kept"):
        grad(lambda h: remat.scan(step, h, numpy.ones(3), plan=plan)[0])(0.1)
