"""Bad input gets a clear error, on every framework, before any work is lost."""

from collections import namedtuple
from dataclasses import replace

import numpy
import pytest

import remat

from .frameworks import where_python_runs_each_step

Pair = namedtuple("Pair", "h c")

traced_or_not = pytest.mark.parametrize("traced", [True, False], ids=["gradient", "no gradient"])


def words(framework, said):
    """What a framework says: the same for all, or {framework: words, "": words of the others}."""
    return said if isinstance(said, str) else said.get(framework.name, said[""])


def step_of(framework):
    return lambda h, x: (framework.np.tanh(h + x), h)


def ones(framework, *shape):
    return framework.array(numpy.ones(shape))


def run(framework, step, init, xs=None, traced=True, **how):
    """The loop, or the gradient of its outputs by a factor that the step uses."""
    xs = ones(framework, 5) if xs is None else xs
    how = how or {"slots": 2}
    if not traced:
        return remat.scan(step, init, xs, **how)

    def loss(w):
        def scaled(h, x):
            return step(h, x * w if "float" in str(x.dtype) else x)

        return framework.weigh(remat.scan(scaled, init, xs, **how)[1]) * w

    return framework.gradient(loss, framework.array(1.0))


@traced_or_not
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
        ({"memory": "many"}, "memory: 'many' is not a size"),
        ({"memory": "90%"}, "memory=0.9 is a share of what is free"),
        ({"memory": "0.9"}, "memory=0.9 is a share of what is free"),
        ({"length": "64 KiB"}, "did you mean memory='64 KiB'"),
        ({"memory": 1.5}, "between 0 and 1"),
        ({"slots": 2, "check": "maybe"}, "first"),
        ({"slots": 2, "progress": 3}, "update"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense(framework, traced, how, message):
    def loss(h):
        return framework.np.sum(remat.scan(step_of(framework), h, ones(framework, 5), **how)[1])

    with pytest.raises(remat.ProblemError, match=message):
        framework.gradient(loss, framework.array(0.1)) if traced else loss(framework.array(0.1))


def test_functions_that_are_none(framework):
    with pytest.raises(remat.ProblemError, match="step must be a function"):
        remat.scan(3, framework.array(0.1), ones(framework, 4), slots=2)


def test_lengths_that_do_not_agree_are_named(framework):
    xs = {"a": ones(framework, 5), "b": ones(framework, 4)}
    with pytest.raises(remat.ProblemError, match=r"xs\['a'\] says 5, xs\['b'\] says 4"):
        remat.scan(step_of(framework), framework.array(0.1), xs, slots=2)
    with pytest.raises(remat.ProblemError, match=r"xs\[0\] says 5, xs\[1\] says 6"):
        remat.scan(step_of(framework), framework.array(0.1), (ones(framework, 5), ones(framework, 6)), slots=2)


def test_a_length_in_the_place_of_inputs(framework):
    with pytest.raises(remat.ProblemError, match="for 60 steps without inputs write length=60"):
        remat.scan(step_of(framework), framework.array(0.1), 60, slots=2)


@where_python_runs_each_step
@traced_or_not
def test_a_step_that_returns_its_results_in_the_other_order(framework, traced):
    with pytest.raises(remat.errors.CarryError, match=r"return \(carry, y\), not \(y, carry\)"):
        run(framework, lambda h, x: (framework.np.sum(h), h * x), ones(framework, 3), traced=traced)
    with pytest.raises(remat.StepError, match=r"the step must return \(carry, y\), and step 0 returned one array"):
        run(framework, lambda h, x: h * x, ones(framework, 3), traced=traced)


def test_a_length_that_is_not_given(framework):
    for xs in (None, {}):
        with pytest.raises(remat.ProblemError, match=words(framework, {"jax": "not known", "": "give xs, or length="})):
            remat.scan(step_of(framework), framework.array(0.1), xs, slots=2)


@where_python_runs_each_step  # JAX has lax.scan's contract, in which a loop may have no steps
@pytest.mark.parametrize("rows", [True, False])
def test_no_steps(framework, rows):
    with pytest.raises(remat.ProblemError, match="0 steps"):
        remat.scan(step_of(framework), framework.array(0.1), ones(framework, 0, 3) if rows else None, length=0, slots=2)


def test_inputs_without_rows(framework):
    with pytest.raises(remat.StepError, match=r"xs\[1\] is a single number"):
        remat.scan(step_of(framework), framework.array(0.1), (ones(framework, 4), framework.array(2.0)), slots=2)


def test_a_plan_for_another_length(framework):
    plan = remat.plan(remat.Loop(6), slots=2)
    with pytest.raises(remat.ProblemError, match="6 steps and the loop has 5"):
        run(framework, step_of(framework), framework.array(0.1), plan=plan)


def test_memory_with_levels_is_refused(framework):
    memory = remat.Memory(levels=[remat.Level("ram", slots=2), remat.Level("disk", read=1)])
    with pytest.raises(remat.PlannerError, match="one level"):
        remat.scan(step_of(framework), framework.array(0.1), ones(framework, 4), memory=memory)


def test_no_slots(framework):
    with pytest.raises(remat.InfeasibleError, match="1 slot"):
        run(framework, step_of(framework), framework.array(0.1), slots=0)


def test_too_little_memory_names_the_smallest_that_works_and_that_works(framework):
    counter = framework.counter()

    def loss(h, memory):
        def step(h, _):
            counter.here(h)
            return framework.np.sin(h), None

        return framework.np.sum(remat.scan(step, h, length=50, memory=memory)[0])

    h = framework.array(numpy.linspace(0, 1, 1000))
    with pytest.raises(remat.InfeasibleError, match=r"the smallest that works is .*\. A state takes") as caught:
        framework.gradient(lambda h: loss(h, 1000), h)
    assert caught.value.unit == "bytes"
    assert counter.count < 50  # only measured
    framework.gradient(lambda h: loss(h, caught.value.minimum), h)
    less = caught.value.minimum - (8 if framework.name == "numpy" else 1)  # NumPy's is rounded up to whole numbers
    with pytest.raises(remat.InfeasibleError):
        framework.gradient(lambda h: loss(h, less), h)


# Steps that change what they are given.

CHANGES = {
    "tuple": (
        lambda f: (f.array(1.0), f.array(2.0)),
        lambda f, h: (h[0],),
        {"jax": r"carry\[1\] is gone", "": "carry was a tuple of 2 and became a tuple of 1"},
    ),
    "named tuple": (
        lambda f: Pair(f.array(1.0), f.array(2.0)),
        lambda f, h: (h.h, h.c),
        {"jax": "structure", "": "carry was a Pair with h, c and became a tuple of 2"},
    ),
    "dict": (
        lambda f: {"a": f.array(1.0)},
        lambda f, h: {"b": h["a"]},
        {"jax": r"carry\['a'\] is gone", "": "carry was a dict with a and became a dict with b"},
    ),
    "dict with None": (
        lambda f: {"a": None, "h": f.array(1.0)},
        lambda f, h: {"b": f.array(5.0), "h": h["h"]},
        {"jax": r"carry\['b'\] came new", "": "became a dict with b, h"},
    ),
    "leaf that is new": (
        lambda f: {"h": f.array(1.0)},
        lambda f, h: {**h, "d": h["h"]},
        {"jax": r"carry\['d'\] came new", "": "carry was a dict with h and became a dict with d, h|became a dict"},
    ),
    "nested": (
        lambda f: [f.array(1.0), (f.array(2.0),)],
        lambda f, h: [h[0], f.array(2.0)],
        {"jax": r"structure|carry\[1\]", "": r"carry\[1\] was a tuple of 1 and became a"},
    ),
    "a tuple of one": (
        lambda f: f.array(1.0),
        lambda f, h: (h,),
        {"jax": "structure|carry", "": "carry was an array or a number and became a tuple of 1|became a tuple of 1"},
    ),
    "None": (lambda f: f.array(1.0), lambda f, h: None, {"jax": "carry is gone|structure|None", "": "became None"}),
    "shape": (
        lambda f: f.array([1.0, 1.0, 1.0]),
        lambda f, h: f.array([1.0, 1.0, 1.0, 1.0]),
        {
            "jax": r"carry was float64\[3\] and became float64\[4\]",
            "": r"carry was float64\[3\] and became float64\[4\] after step 0",
        },
    ),
    "dtype": (
        lambda f: {"a": f.array([1.0, 1.0], "float32")},
        lambda f, h: {"a": f.array([1.0, 1.0])},
        r"carry\['a'\] was float32\[2\] and became float64\[2\]",
    ),
    "integers to floats": (
        lambda f: f.array([0, 1, 2], "int64"),
        lambda f, h: h * 1.5,
        {"numpy": r"int64\[3\] and became float64\[3\] .* start with float64", "": r"int64\[3\] and became float"},
    ),
    "floats to integers": (
        lambda f: f.array([0.0, 1.0, 2.0]),
        lambda f, h: f.array([0, 1, 2], "int32"),
        r"carry was float64\[3\] and became int32",
    ),
    "text": (
        lambda f: f.array(1.0),
        lambda f, h: "text",
        {"numpy": "carry after step 0 is a str", "": "str"},
    ),
}


@traced_or_not
@pytest.mark.parametrize("kind", CHANGES)
def test_a_carry_that_changes_is_told_how(framework, traced, kind, request):
    if framework.name == "jax" and kind == "text":
        reason = "a carry that becomes a text is a TypeError of JAX, and no StepError"
        request.applymarker(pytest.mark.xfail(strict=True, raises=TypeError, reason=reason))
    make, change, said = CHANGES[kind]
    with pytest.raises(remat.StepError, match=words(framework, said)):
        run(framework, lambda h, x: (change(framework, h), x), make(framework), traced=traced)


@where_python_runs_each_step
@traced_or_not
def test_a_carry_that_changes_later_is_told_when(framework, traced):
    def step(h, x):
        return (h if x < 3 else h[:2]), None

    xs = framework.array(numpy.arange(6), "int64")
    run = framework.gradient if traced else lambda loss, h: loss(h)
    with pytest.raises(remat.StepError, match=r"carry was float64\[4\] and became float64\[2\] after step 3"):
        run(lambda h: framework.weigh(remat.scan(step, h, xs, slots=2)), ones(framework, 4))


@traced_or_not
@pytest.mark.parametrize(
    ("out", "message"),
    [
        (1.0, {"jax": "must return", "": r"must return \(carry, y\), and step 0 returned a"}),
        ((1.0, 2.0, 3.0), "a tuple of 3"),
        (None, "returned None"),
    ],
    ids=["number", "three", "None"],
)
def test_a_step_that_returns_something_else(framework, traced, out, message):
    with pytest.raises(remat.StepError, match=words(framework, message)):
        run(framework, lambda h, x: out, framework.array(0.1), traced=traced)


@where_python_runs_each_step
@traced_or_not
def test_outputs_that_change(framework, traced):
    xs = framework.array(numpy.arange(5), "int64")
    with pytest.raises(remat.StepError, match=r"y was float64\[2\] and became float64\[1\] after step 3"):
        run(framework, lambda h, x: (h, ones(framework, 2 if x < 3 else 1)), framework.array(0.1), xs, traced)
    one = framework.array(1.0)
    with pytest.raises(remat.StepError, match="y was a tuple of 1 and became None"):
        run(framework, lambda h, x: (h, (one,) if x < 3 else None), framework.array(0.1), xs, traced)


@pytest.mark.parametrize("kind", ["text", "object", "text beside an array"])
def test_leaves_that_are_no_arrays_are_named(framework, kind):
    init, said = {
        "text": ("text", {"": "init is a str", "torch": "init is a (builtins.)?str"}),
        "object": ({"a": [framework.array(1.0), object()]}, r"init\['a'\]\[1\] is an? (builtins.)?object"),
        "text beside an array": (
            {"h": framework.array(1.0), "name": "x"},
            r"init\['name'\] is a (builtins.)?str",
        ),
    }[kind]
    with pytest.raises(remat.StepError, match=words(framework, said)):
        remat.scan(step_of(framework), init, ones(framework, 4), slots=2)


# Errors of the step itself.


@traced_or_not
@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError])
def test_errors_of_the_step_keep_their_type_and_text(framework, kind, traced):
    def step(h, x):
        raise kind("config store is read-only today")

    run = framework.gradient if traced else lambda loss, h: loss(h)
    with pytest.raises(kind, match="config store") as caught:
        run(lambda h: remat.scan(step, h, ones(framework, 7), slots=3)[0], framework.array(0.3))
    assert not isinstance(caught.value, remat.RematError)
    if framework.runs_python:
        assert "in step 0" in caught.value.__notes__[0]
        assert "carry float64[]" in caught.value.__notes__[0]


@where_python_runs_each_step
def test_errors_of_a_later_step_say_in_which(framework):
    def step(carry, _):
        i, h = carry
        if i == 7:
            raise KeyError("mine")
        return (i + 1, h * 2), None

    with pytest.raises(KeyError) as caught:
        framework.gradient(lambda h: remat.scan(step, (0, h), length=9, slots=3)[0][1], framework.array(1.0))
    assert "in step 7" in caught.value.__notes__[0]


def test_an_error_in_the_step_leaves_everything_as_it_was(framework):
    def loss(w):
        held = [w]

        def step(h, x):
            raise_at_the_end(h)
            return h * w, None

        with pytest.raises(RuntimeError, match="broken step"):
            remat.scan(step, framework.array(1.0), ones(framework, 5), slots=2)
        assert step.__closure__[1].cell_contents is held[0]
        return w * 1.0

    calls = []

    def raise_at_the_end(h):
        calls.append(None)
        if len(calls) > (3 if framework.runs_python else 0):
            raise RuntimeError("broken step")

    assert framework.gradient(loss, framework.array(2.0))[0] == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep 0 ram; advance 1 2", "not legal"),
        ("advance 0 2; record 2 3; turn; pullback 3 2; fetch 0 ram", "not legal"),
        ("record 0 3; turn; pullback 2 0", "not legal"),
        ("record 0 2; turn", "not legal"),
        ("keep 0 ram; record 0 3; turn; pullback 3 0", "1 states kept"),
    ],
)
def test_an_illegal_schedule_is_refused_at_the_op_that_breaks_it(framework, text, message):
    good = remat.plan(remat.Loop(3), slots=3)
    plan = replace(good, source=remat.Schedule.parse(text.replace("; ", "\n")))
    with pytest.raises(remat.IllegalError, match=message):
        framework.gradient(
            lambda h: remat.scan(step_of(framework), h, ones(framework, 3), plan=plan, **framework.any_plan)[0],
            framework.array(0.1),
        )


def test_a_list_with_one_entry_for_each_step_is_explained(framework):
    """It is a container, whose first rows the step gets in a list; only a step that fails by that shows the mistake."""
    rows = [ones(framework, 4, 2) for _ in range(3)]
    with pytest.raises(remat.StepError, match=r"xs is a list of 3 arrays of shape \[4, 2\].* stack it: torch\.stack"):
        remat.scan(lambda h, x: (h + x.sum(), None), ones(framework, 2), rows, slots=2)
    with pytest.raises(remat.ProblemError, match=r"length says 3, xs\[0\] says 4.* numpy\.stack\(xs\)"):
        remat.scan(lambda h, x: (h + x.sum(), None), ones(framework, 2), rows, 3, slots=2)
    # The same list where it is meant, and errors that are not about it.
    assert remat.scan(lambda h, x: (h + x[2], None), ones(framework, 2), rows, slots=2)[0].shape == (2,)
    for xs, message in ((rows, "of my own"), (rows[0], "'list'")):
        with pytest.raises(TypeError, match=message) as caught:
            remat.scan(lambda h, x, said=message: fail(said), ones(framework, 2), xs, slots=2)
        assert not isinstance(caught.value, remat.StepError)


def fail(message):
    raise TypeError(message)


def test_a_step_that_takes_its_input_first_is_told_the_order(framework):
    def cell(x, hidden):
        return fail("shapes do not fit") if x.shape == (3,) else (hidden, None)

    with pytest.raises(TypeError, match="shapes do not fit") as caught:
        remat.scan(cell, ones(framework, 3), ones(framework, 5, 2), slots=2)
    assert "takes (x, hidden)" in "".join(caught.value.__notes__)
