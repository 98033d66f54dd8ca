"""The documented functions of older systems: their signatures and values, and gradients that are exact."""

import math
from collections import namedtuple

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, hessian
from autograd.builtins import tuple as boxed_tuple

import remat
from remat import ag_tuple

RNG = numpy.random.default_rng(0)
STEPS = 13
PARAMS = {"w": RNG.normal(size=(3, 3)), "b": RNG.normal(size=3)}
XS = RNG.normal(size=(STEPS, 3))


def rnn(params, state, x):
    return ag_tuple((ag_tuple(()), np.tanh(np.dot(state[1], params["w"]) + params["b"] + x)))


def lstm(params, state, x):
    cell, out = state
    cell = np.tanh(np.dot(out, params["w"])) * cell + x
    return cell, np.tanh(cell + params["b"])


def plain(function, params, state, inputs):
    visible = [state[1]]
    for i in range(STEPS):
        state = function(params, state, inputs[i])
        visible.append(state[1])
    return np.stack(visible)


CASES = {"rnn": (rnn, (ag_tuple(()), RNG.normal(size=3))), "lstm": (lstm, (RNG.normal(size=3), RNG.normal(size=3)))}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("checkpoints", [1, 2, 5, 13, 40])
def test_gradients_of_parameters_state_and_inputs_together(name, checkpoints):
    function, state = CASES[name]
    loop = remat.binomial_checkpoint(function, STEPS, checkpoints)
    weights = RNG.normal(size=(STEPS + 1, 3))

    def loss(arguments, run):
        params, state, inputs = arguments
        return np.sum(run(params, state, inputs) * weights)

    arguments = boxed_tuple((PARAMS, state, XS))
    found = grad(loss)(arguments, loop)
    expected = grad(loss)(arguments, lambda *args: plain(function, *args))
    for key in PARAMS:
        numpy.testing.assert_allclose(found[0][key], expected[0][key], rtol=1e-12)
    for a, b in zip(found[1], expected[1], strict=True):
        if len(a):
            numpy.testing.assert_allclose(a, b, rtol=1e-12)
    numpy.testing.assert_allclose(found[2], expected[2], rtol=1e-12)


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_one_argument_at_a_time(argnum):
    loop = remat.binomial_checkpoint(lstm, STEPS, 4)
    arguments = (PARAMS, (numpy.ones(3), numpy.ones(3)), XS)
    found = grad(lambda *args: np.sum(loop(*args) ** 2), argnum)(*arguments)
    expected = grad(lambda *args: np.sum(plain(lstm, *args) ** 2), argnum)(*arguments)
    if argnum == 0:
        found, expected = (list(g.values()) for g in (found, expected))
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-12)


def test_one_reverse_sweep_for_all_arguments():
    calls = 0

    def function(params, state, x):
        nonlocal calls
        calls += 1
        return lstm(params, state, x)

    loop = remat.binomial_checkpoint(function, STEPS, 3)
    grad(lambda a: np.sum(loop(*a)))(boxed_tuple((PARAMS, (numpy.ones(3), numpy.ones(3)), XS)))
    assert calls == remat.plan(remat.Loop(STEPS), slots=3).forward_steps


def test_the_initial_visible_state_comes_first():
    first = numpy.array([0.1, 0.2, 0.3])
    visible = remat.binomial_checkpoint(rnn, STEPS, 3)(PARAMS, (ag_tuple(()), first), XS)
    assert len(visible) == STEPS + 1
    assert numpy.array_equal(visible[0], first)
    numpy.testing.assert_array_equal(visible, plain(rnn, PARAMS, (ag_tuple(()), first), XS))


def test_inputs_as_a_list_and_visible_containers():
    def function(params, state, x):
        (), (h, _) = state
        h = np.tanh(params * h + x["a"])
        return (), (h, {"twice": 2 * h})

    loop = remat.binomial_checkpoint(function, 4, 2)
    inputs = [{"a": float(i)} for i in range(4)]

    def loss(p):
        visible = loop(p, ((), (0.5, {"twice": 1.0})), inputs)
        assert len(visible) == 5
        return sum(h + v["twice"] for h, v in visible)

    def reference(p):
        h, total = 0.5, 1.5
        for i in range(4):
            h = np.tanh(p * h + i)
            total = total + 3 * h
        return total

    assert grad(loss)(0.3) == pytest.approx(grad(reference)(0.3), rel=1e-13)


def test_wrong_lengths_and_states():
    loop = remat.binomial_checkpoint(rnn, STEPS, 3)
    state = (ag_tuple(()), numpy.zeros(3))
    with pytest.raises(remat.ProblemError, match=f"xs says {STEPS - 1}"):
        loop(PARAMS, state, XS[1:])
    with pytest.raises(remat.ProblemError, match=f"{STEPS - 1} inputs for {STEPS} steps"):
        loop(PARAMS, state, list(XS[1:]))
    with pytest.raises(remat.StepError, match=r"\(hidden, visible\)"):
        loop(PARAMS, numpy.zeros(3), XS)
    with pytest.raises(remat.StepError, match="must return"):
        remat.binomial_checkpoint(lambda p, s, x: s[1], STEPS, 3)(PARAMS, state, XS)
    for bad in ((rnn, 0, 3), (rnn, 5, 0), (rnn, 2.5, 3), ("rnn", 5, 3)):
        with pytest.raises(remat.ProblemError):
            remat.binomial_checkpoint(*bad)


def test_checkpointed_loop_as_documented():
    final, checkpoints = remat.checkpointed_loop(lambda x: x + 1, numpy.zeros(1), 20, 4)
    assert final.tolist() == [20.0]
    assert {position: state.item() for position, state in checkpoints.items()} == {4: 4, 8: 8, 12: 12, 16: 16}
    _, checkpoints = remat.checkpointed_loop(lambda x: np.tanh(x * 1.1 + 0.1), numpy.zeros(512), 1000)
    assert len(checkpoints) == 31
    assert list(checkpoints) == remat.compute_checkpoint_positions(1000, 31)


State = namedtuple("State", "h c")


def test_checkpointed_loop_keeps_named_tuples_and_starts_at_zero_where_all_are_kept():
    start = State(0.0, numpy.ones(2))
    final, checkpoints = remat.checkpointed_loop(lambda s: State(s.h + s.c[0], s.c), start, 5, 10)
    assert isinstance(final, State)
    assert list(checkpoints) == [0, 1, 2, 3, 4]
    assert [state.h for state in checkpoints.values()] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert all(isinstance(state, State) for state in checkpoints.values())


@pytest.mark.parametrize(("steps", "expected"), [(6, 0.14382639340295014), (4, 0.3820445144477567)])
@pytest.mark.parametrize("checkpoints", [None, 0, 1, 2, 3, 6, 9])
def test_checkpointed_loop_is_differentiable(steps, expected, checkpoints):
    found = grad(lambda x: remat.checkpointed_loop(lambda x: np.tanh(1.1 * x + 0.1), x, steps, checkpoints)[0])(0.3)
    assert found == pytest.approx(expected, rel=1e-14)


def test_the_checkpoints_are_differentiable_too():
    w = numpy.array([0.9, 1.1])

    def loss(x, w, run):
        final, checkpoints = run(lambda x: np.tanh(w * x + 0.1), x)
        return np.sum(final) + sum(np.sum(k * state**2) for k, state in checkpoints.items())

    def ours(function, x):
        return remat.checkpointed_loop(function, x, 17, 4)

    def reference(function, x):
        states = [x]
        for _ in range(17):
            states.append(function(states[-1]))
        return states[-1], {k: states[k] for k in remat.compute_checkpoint_positions(17, 4)}

    x = numpy.array([0.2, 0.7])
    for argnum in (0, 1):
        a, b = grad(loss, argnum)(x, w, ours), grad(loss, argnum)(x, w, reference)
        numpy.testing.assert_allclose(a, b, rtol=1e-12)
    numpy.testing.assert_allclose(hessian(loss)(x, w, ours), hessian(loss)(x, w, reference), rtol=1e-10)


def test_a_loop_of_no_steps():
    assert remat.checkpointed_loop(lambda x: x + 1, 3.0, 0) == (3.0, {})
    with pytest.raises(remat.ProblemError):
        remat.checkpointed_loop(3, 3.0, 5)
    with pytest.raises(remat.ProblemError):
        remat.checkpointed_loop(lambda x: x, 3.0, -5)


def test_positions_as_documented():
    positions = remat.compute_checkpoint_positions(1000, 31)
    assert positions[:4] == [31, 62, 93, 124]
    assert positions[-8:] == [744, 776, 808, 840, 872, 904, 936, 968]
    assert remat.compute_checkpoint_positions(100, 5) == [16, 32, 49, 66, 83]
    assert remat.compute_checkpoint_positions(5, 10) == [0, 1, 2, 3, 4]
    assert remat.compute_checkpoint_positions(100, 0) == []
    assert remat.compute_checkpoint_positions(0, 3) == []


@pytest.mark.parametrize(
    ("steps", "count", "percent"), [(100, 10, 90.0), (500, 22, 95.6), (1000, 31, 96.9), (5000, 70, 98.6)]
)
def test_savings_as_documented(steps, count, percent):
    for stats in (remat.get_memory_savings(steps), remat.estimate_checkpoint_savings(steps)):
        assert stats["num_checkpoints"] == stats["with_checkpointing"] == count == math.isqrt(steps)
        assert stats["without_checkpointing"] == steps
        assert f"{stats['savings_percent']:.1f}" == f"{percent:.1f}"
        assert stats["savings_ratio"] == pytest.approx(1 - count / steps, abs=1e-15)
        assert stats["recomputation_factor"] == pytest.approx(steps / count)


def test_the_true_cost_has_keys_of_its_own():
    stats = remat.get_memory_savings(1000)
    assert f"{stats['recomputation_factor']:.1f}" == "32.3"
    assert (stats["forward_steps"], stats["extra_forward_steps"]) == (3439, 2439)
    assert stats["peak_states"] == 34
    assert remat.get_memory_savings(10, 3)["forward_steps"] == 25
    assert remat.get_memory_savings(10, 50)["num_checkpoints"] == 10
    assert remat.get_memory_savings(10, 0)["forward_steps"] == 55
    assert remat.get_memory_savings(0)["savings_percent"] == 0.0
    assert remat.get_memory_savings(1000)["savings_ratio"] == 0.969


@pytest.mark.parametrize("steps", [1, 2, 7, 100, 1000])
def test_the_savings_ratio_is_the_scale_of_the_threshold(steps):
    ratio = remat.get_memory_savings(steps)["savings_ratio"]
    assert remat.should_checkpoint(steps, ratio)
    assert not remat.should_checkpoint(steps, math.nextafter(ratio, 2))


def test_should_checkpoint():
    assert remat.should_checkpoint(1000)
    assert remat.should_checkpoint(seq_length=100, threshold=0.9)
    assert not remat.should_checkpoint(100, threshold=0.95)
    assert not remat.should_checkpoint(1)
    assert not remat.should_checkpoint(0)
    for bad in (-0.1, 2, "much", True):
        with pytest.raises(remat.ProblemError):
            remat.should_checkpoint(100, bad)
    with pytest.raises(remat.ProblemError):
        remat.should_checkpoint(-1)
