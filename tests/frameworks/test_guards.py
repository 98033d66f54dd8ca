"""Steps that do not repeat themselves are found out; random ones repeat; those that write in place do no harm."""

import random

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, jacobian

import remat
from remat.planners import Chunks


def gradient(step, x=0.3, steps=20, **how):
    how = {"slots": 3} | how
    return grad(lambda x: np.sum(remat.scan(step, x, length=steps, **how)[0]))(x)


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_a_step_that_counts_its_calls_is_an_error(slots):
    calls = 0

    def step(x, _):
        nonlocal calls
        calls += 1
        return x * 0.9 + 0.001 * calls * x, None

    with pytest.raises(remat.DeterminismError, match=r"carry .* after step \d+"):
        gradient(step, slots=slots)


@pytest.mark.parametrize("make", [numpy.random.default_rng, numpy.random.RandomState, random.Random])
def test_a_private_generator_that_the_step_closes_over_is_replayed(make):
    def plain(x, rng):
        for _ in range(9):
            x = np.tanh(x + 0.1 * (rng.normal() if hasattr(rng, "normal") else rng.gauss(0.0, 1.0)))
        return x

    rng, other = make(5), make(5)
    draw = rng.normal if hasattr(rng, "normal") else lambda: rng.gauss(0.0, 1.0)
    found = grad(lambda x: remat.scan(lambda x, _: (np.tanh(x + 0.1 * draw()), None), x, length=9, slots=2)[0])(0.3)
    assert found == grad(plain)(0.3, other)
    assert rng.random() == other.random() if make is not numpy.random.RandomState else rng.rand() == other.rand()


def test_a_private_generator_that_is_hidden_is_an_error_that_says_what_to_do():
    rng = (lambda made: lambda: next(made))(iter(numpy.random.default_rng().normal(size=1000)))
    with pytest.raises(remat.DeterminismError, match="pass them in xs"):
        gradient(lambda x, _: (np.tanh(x + 0.1 * rng()), None))


def test_a_step_is_told_when_it_runs_again():
    told = []

    def step(x, _):
        told.append(remat.is_recomputing())
        return np.sin(x), None

    gradient(step, slots=3)
    first = told.count(False)
    assert told[:first] == [False] * first
    assert len(told) > first == 20
    assert not remat.is_recomputing()


def test_an_output_that_changes_is_an_error():
    calls = [0]

    def step(x, _):
        calls[0] += 1
        return np.tanh(x), x * calls[0]

    with pytest.raises(remat.DeterminismError, match="y was another one"):
        grad(lambda x: np.sum(remat.scan(step, x, length=9, slots=2)[1]))(0.3)


def test_the_leaf_that_changed_is_named():
    calls = [0]

    def step(state, _):
        calls[0] += 1
        return {"good": np.tanh(state["good"]), "bad": [state["bad"][0] + calls[0]]}, None

    def loss(x):
        return remat.scan(step, {"good": x, "bad": [x]}, length=9, slots=2)[0]["good"]

    with pytest.raises(remat.DeterminismError, match=r"carry\['bad'\]\[0\]"):
        grad(loss)(0.3)


def test_never_does_not_look():
    calls = [0]

    def step(x, _):
        calls[0] += 1
        return x * calls[0], None

    assert gradient(step, check="never") > 0


def test_first_looks_at_the_first_sweep_of_a_call_and_always_at_all():
    wrong = []

    def step(x, _):
        return np.tanh(x) + (len(wrong) * 0.1 * random.SystemRandom().random()), None

    for check, caught in (("first", False), ("always", True)):
        wrong.clear()

        def f(x, check=check):
            return remat.scan(step, x, length=9, slots=2, check=check)[0]

        from autograd import make_vjp

        pull, y = make_vjp(f)(numpy.array([0.3, 0.4]))
        pull(numpy.ones_like(y))
        wrong.append(1)
        if caught:
            with pytest.raises(remat.DeterminismError):
                pull(numpy.ones_like(y))
        else:
            pull(numpy.ones_like(y))


def test_long_loops_are_watched_in_some_thousand_places_only():
    calls = [0]

    def step(x, _):
        calls[0] += 1
        return x + (calls[0] > 70_000), None

    with pytest.raises(remat.DeterminismError):
        gradient(step, steps=60_000, slots=200)


def test_states_that_are_not_finite_are_no_reason_to_complain():
    def step(x, _):
        return x * 1e30, None

    with numpy.errstate(all="ignore"):
        assert gradient(step, x=1.0, steps=30) == numpy.inf


def test_random_numbers_are_replayed_and_the_stream_goes_on_as_if_nothing_had_happened():
    def step(x, _):
        noise = numpy.random.normal() + random.gauss(0, 1) + numpy.random.rand()
        return np.tanh(x * 1.1 + 0.3 * noise), noise * x

    def plain(x):
        total = 0.0
        for _ in range(20):
            x, y = step(x, None)
            total = total + y
        return x + total

    def ours(x):
        x, ys = remat.scan(step, x, length=20, slots=3)
        return x + np.sum(ys)

    after = []
    for loss in (plain, ours):
        random.seed(4)
        numpy.random.seed(5)
        after.append((grad(loss)(0.3), random.random(), random.gauss(0, 1), numpy.random.randn(), numpy.random.rand()))
    assert after[1][0] == pytest.approx(after[0][0], rel=1e-13)
    assert after[0][1:] == after[1][1:]


def test_draws_that_begin_late_are_replayed():
    def step(x, i):
        return np.tanh(x + (random.random() if i > 12 else 0.0)), None

    def plain(x):
        for i in range(20):
            x, _ = step(x, i)
        return x

    random.seed(1)
    expected = grad(plain)(0.3)
    random.seed(1)
    found = grad(lambda x: remat.scan(step, x, numpy.arange(20), slots=3)[0])(0.3)
    assert found == pytest.approx(expected, rel=1e-13)


def test_writing_into_the_carry_is_what_it_is_under_autograd():
    """`h += x` is a new array to autograd, even for a name that it had before."""

    def step(h, x):
        before = h
        h += np.sin(x) * 0.5
        h *= 0.9
        return h + 0.1 * before, before * 2.0

    xs, h0 = numpy.linspace(0, 2, 12).reshape(12, 1), numpy.array([0.2, 0.5])

    def plain(h, xs):
        total = 0.0
        for i in range(12):
            h, y = (h + np.sin(xs[i]) * 0.5) * 0.9 + 0.1 * h, h * 2.0
            total = total + np.sum(y**2)
        return total + np.sum(h)

    def ours(h, xs):
        h, ys = remat.scan(step, h, xs, slots=3)
        return np.sum(ys**2) + np.sum(h)

    for argnum in (0, 1):
        numpy.testing.assert_allclose(grad(ours, argnum)(h0, xs), grad(plain, argnum)(h0, xs), rtol=1e-13)
    assert h0.tolist() == [0.2, 0.5]


def test_a_scratch_array_that_is_returned_does_not_spoil_what_is_kept():
    scratch = numpy.zeros(2)

    def step(h, x):
        if isinstance(h, numpy.ndarray):
            numpy.multiply(h, 0.9, out=scratch)
            scratch[...] += 0.1
            return scratch, None
        return h * 0.9 + 0.1, None

    def loss(h):
        return np.sum(remat.scan(step, h, length=15, slots=3)[0] ** 2)

    def plain(h):
        for _ in range(15):
            h = h * 0.9 + 0.1
        return np.sum(h**2)

    h = numpy.array([0.3, 0.8])
    numpy.testing.assert_allclose(grad(loss)(h), grad(plain)(h), rtol=1e-12)


def test_writing_that_autograd_cannot_record_is_refused_with_advice():
    def step(h, x):
        h[0] = 1.0
        return h, None

    with pytest.raises(remat.StepError, match="make new arrays"):
        gradient(step, x=numpy.array([0.3, 0.4]))


def test_writing_into_the_inputs_is_refused_with_advice():
    xs = numpy.ones((5, 2))

    def step(h, x):
        x *= 2
        return h + x, None

    with pytest.raises(remat.StepError, match="its input x"):
        grad(lambda h: np.sum(remat.scan(step, h, xs, slots=2)[0]))(numpy.zeros(2))
    assert xs.max() == 1


def test_jacobian_of_a_random_step_replays_for_every_row():
    def step(x, _):
        return x * numpy.random.rand() + np.sin(x), None

    def plain(x):
        for _ in range(9):
            x, _ = step(x, None)
        return x

    x = numpy.array([0.1, 0.2, 0.3])
    numpy.random.seed(3)
    expected = jacobian(plain)(x)
    numpy.random.seed(3)
    numpy.testing.assert_allclose(
        jacobian(lambda x: remat.scan(step, x, length=9, slots=2)[0])(x), expected, rtol=1e-12
    )


@pytest.mark.parametrize("filler", [numpy.nan, numpy.inf, -numpy.inf])
def test_numbers_that_are_not_finite_hide_no_change_beside_them(filler):
    calls = [0]

    def step(h, _):
        calls[0] += 1
        return np.concatenate([h[:1] * calls[0], numpy.array([filler, filler])]), None

    with numpy.errstate(all="ignore"), pytest.raises(remat.DeterminismError):
        grad(lambda w: remat.scan(step, numpy.array([1e3, 0.0, 0.0]) * w, length=5, slots=2)[0][0])(1.0)


def test_numbers_that_are_too_large_to_be_summed_up():
    calls = [0]

    def step(h, _):
        calls[0] += 1
        return h * numpy.float32(1 + 0.01 * calls[0]), None

    with numpy.errstate(all="ignore"), pytest.raises(remat.DeterminismError):
        gradient(step, x=numpy.full(100, 1e37, numpy.float32), steps=5)


def test_a_cached_gaussian_is_replayed():
    def step(h, x):
        return np.tanh(h * x + (numpy.random.randn() if x < 0.15 else 0.0)), None

    def plain(w):
        for x in numpy.linspace(0.1, 1, 8):
            w, _ = step(w, x)
        return w

    found = []
    for loss in (plain, lambda w: remat.scan(step, w, numpy.linspace(0.1, 1, 8), slots=3)[0]):
        numpy.random.seed(0)
        numpy.random.randn()
        found.append(grad(loss)(0.3))
    assert found[0] == pytest.approx(found[1], rel=1e-13)


@pytest.mark.parametrize("own", [False, True])
def test_a_step_that_draws_and_then_writes_in_place(own):
    def step(h, x):
        noise = numpy.random.rand()
        h *= 0.9
        h += noise * x
        return h, None

    def plain(h):
        for x in numpy.linspace(0, 1, 9):
            noise = numpy.random.rand()
            h = h * 0.9 + noise * x
        return np.sum(h**2)

    how = {"vjp": lambda h, x, g, y: (0.9 * g, None)} if own else {}
    found = []
    for loss in (plain, lambda h: np.sum(remat.scan(step, h, numpy.linspace(0, 1, 9), slots=3, **how)[0] ** 2)):
        numpy.random.seed(0)
        found.append(grad(loss)(numpy.array([0.3, 0.5])))
    numpy.testing.assert_allclose(found[1], found[0], rtol=1e-13)


def test_what_cannot_be_recorded_is_found_out_at_the_first_step():
    calls = []

    def step(h, x):
        calls.append(None)
        return numpy.float64(float(h)) * 2, None

    with pytest.raises(remat.StepError, match="autograd cannot record step 0"):
        gradient(step, steps=100)
    assert len(calls) == 1


def test_chaos_is_no_reason_to_complain():
    def step(x, _):
        return 4 * x - 4 * x**2, None

    for how in ({"memory": "1 MiB"}, {"slots": 5}, {"plan": remat.plan(remat.Loop(300), slots=9, planner="chunks")}):
        assert numpy.isfinite(gradient(step, steps=300, **({"slots": None} | how)))


@pytest.mark.parametrize("length", [1, 5, 40, 69, 100])
def test_chaos_over_recorded_ranges_of_any_length_is_no_reason_to_complain(length):
    plan = remat.plan(remat.Loop(300), slots=9, planner=Chunks(length))
    assert numpy.isfinite(gradient(lambda x, _: (4 * x - 4 * x**2, None), steps=300, slots=None, plan=plan))
