"""The loops of older systems mean the same on every framework: values, gradients, independent states."""

import numpy
import pytest

import remat

from .adapter import Counter
from .comparison import assert_same
from .frameworks import where_python_runs_each_step

STEPS = 23


def plain_states(framework, function, state, steps=STEPS):
    states = [state]
    for _ in range(steps):
        states.append(function(states[-1]))
    return states


@pytest.mark.parametrize("count", [None, 0, 1, 5, 40])
def test_checkpointed_loop_has_the_gradients_of_the_plain_loop(framework, x, count):
    w = framework.array(numpy.linspace(0.5, 1.3, 5))
    positions = remat.compute_checkpoint_positions(STEPS, 4 if count is None else count)

    def loss(x, w, run):
        final, checkpoints = run(lambda h: framework.np.tanh(w * h + 0.1), x)
        assert list(checkpoints) == positions
        return framework.np.sum(final) + sum(framework.np.sum(k * state**2) for k, state in checkpoints.items())

    def ours(function, x):
        return remat.checkpointed_loop(function, x, STEPS, count)

    def plain(function, x):
        states = plain_states(framework, function, x)
        return states[-1], {k: states[k] for k in positions}

    found = framework.gradient(lambda x, w: loss(x, w, ours), x, w)
    assert_same(found, framework.gradient(lambda x, w: loss(x, w, plain), x, w), 1e-13)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 16, 17])
def test_the_default_of_every_length(framework, x, steps):
    def loss(x):
        final, checkpoints = remat.checkpointed_loop(lambda h: {"h": framework.np.sin(h["h"])}, {"h": x}, steps)
        assert list(checkpoints) == remat.compute_checkpoint_positions(steps, int(steps**0.5))
        return framework.np.sum(final["h"])

    def plain(x):
        return framework.np.sum(plain_states(framework, framework.np.sin, x, steps)[-1])

    assert_same(framework.gradient(loss, x), framework.gradient(plain, x), 1e-14)


@where_python_runs_each_step  # what a compiled program evaluates cannot be counted from outside
@pytest.mark.parametrize(("count", "expected"), [(None, 1000 + 968), (31, 3439), (10, 4636)])
def test_the_default_runs_sections_twice_and_a_given_number_the_optimum(framework, x, count, expected):
    counter = Counter()

    def step(h):
        counter.here(h)
        return framework.np.sin(h)

    with remat.profile() as run:
        framework.gradient(lambda x: framework.np.sum(remat.checkpointed_loop(step, x, 1000, count)[0]), x)
    plan = run.calls[0].plan
    assert plan.forward_steps == expected
    assert 0 <= counter.count - expected <= 11  # PyTorch measures the first step, and probes cost no more than that
    assert ("fastest in the memory of √n states and one section's tape" in str(plan)) == (count is None)


@where_python_runs_each_step  # arrays of JAX cannot be written into
@pytest.mark.parametrize("count", [None, 3, 50])
def test_returned_states_are_independent(framework, count):
    start = framework.array(numpy.arange(4.0))
    final, checkpoints = remat.checkpointed_loop(lambda h: h + 1, start, 20, count)
    states = {"final": final, "start": start, **checkpoints}
    before = {name: framework.to_numpy(state).copy() for name, state in states.items()}
    for name, state in states.items():
        state[...] = -7.0
        assert all((framework.to_numpy(states[other]) == before[other]).all() for other in states if other != name)
        state[...] = framework.array(before[name])


def test_a_buffer_that_a_step_fills_again_and_again_is_copied():
    buffer = numpy.zeros(2)

    def step(h):
        buffer[...] = h + 1
        return buffer

    final, checkpoints = remat.checkpointed_loop(step, numpy.zeros(2), 9)
    assert final.tolist() == [9, 9]
    assert {k: state.tolist() for k, state in checkpoints.items()} == {2: [2, 2], 4: [4, 4], 6: [6, 6]}


def test_binomial_checkpoint_takes_lists_and_gives_all_visible_states(framework, x):
    inputs = [framework.array(numpy.full(5, 0.1 * i)) for i in range(6)]
    weights = framework.array(numpy.linspace(0.2, 1.0, 35).reshape(7, 5))

    def loss(x, w, first, loop):
        return framework.np.sum(weights * loop(w, ((), x), [first, *inputs[1:]]))

    def function(w, state, value):
        return (), framework.np.tanh(w * state[1] + value)

    def plain(w, state, inputs):
        states = [state]
        for value in inputs:
            states.append(function(w, states[-1], value))
        return framework.np.stack([visible for _, visible in states])

    w, ours = framework.array(numpy.full(5, 0.7)), remat.binomial_checkpoint(function, 6, 3)
    found = framework.gradient(lambda *args: loss(*args, ours), x, w, inputs[0])
    assert_same(found, framework.gradient(lambda *args: loss(*args, plain), x, w, inputs[0]), 1e-14)
    constant = framework.gradient(lambda x: loss(x, w, inputs[0], ours), x)  # nothing in the list is traced
    assert_same(constant, found[:1], 1e-14)
