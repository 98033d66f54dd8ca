"""What the older loops hold, counted by tracemalloc: inputs, outputs, kept states and cotangents once each."""

import gc
import tracemalloc

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from autograd.builtins import tuple as boxed_tuple
from autograd.scipy.special import logsumexp

import remat

MIB = 2**20
SIZE, BATCH, STEPS, CHECKPOINTS = 64, 64, 256, 32
STATE = BATCH * SIZE * 8
RNG = numpy.random.default_rng(0)
PARAMS = {"change": RNG.normal(size=(2 * SIZE, SIZE)) / 16, "predict": RNG.normal(size=(SIZE, SIZE)) / 16}
INPUTS = [RNG.normal(size=(BATCH, SIZE)) for _ in range(STEPS)]
UNIT = boxed_tuple(())


def peak(function, *args, warm=True):
    if warm:
        function(*args)  # what is imported and cached the first time does not count
    return measured(function, *args)[0]


def measured(function, *args):
    """The peak of a call, and what it returns."""
    gc.collect()
    tracemalloc.start()
    try:
        result = function(*args)
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def rnn(params, state, x):
    return boxed_tuple((UNIT, np.tanh(np.dot(np.hstack([x, state[1]]), params["change"]))))


def plain(params, state, inputs):
    visible = [state[1]]
    for x in inputs:
        state = rnn(params, state, x)
        visible.append(state[1])
    return visible


def total(params, loop):
    def log_probabilities(h):
        output = np.dot(h + 0.0, params["predict"])
        return output - logsumexp(output, axis=1, keepdims=True)

    start = boxed_tuple((UNIT, np.zeros((BATCH, SIZE))))
    return np.sum(sum([log_probabilities(h) for h in loop(params, start, INPUTS)]))


def test_binomial_checkpoint_of_visible_states_takes_little_more_than_what_is_done_with_them():
    ready = plain(PARAMS, (UNIT, numpy.zeros((BATCH, SIZE))), INPUTS)
    ours = remat.binomial_checkpoint(rnn, STEPS, CHECKPOINTS)
    after_the_loop = peak(grad(total), PARAMS, lambda *args: ready)
    grad(total)(PARAMS, ours)
    outputs, (found, gradients) = (STEPS + 1) * STATE, measured(grad(total), PARAMS, ours)
    plainly, expected = measured(grad(total), PARAMS, plain)
    # Beside the outputs there are nodes and boxes of the graph, but no kept states: these are rows of the outputs.
    assert found <= after_the_loop + outputs + 8 * STATE + STEPS * 5000
    assert found < 0.7 * plainly
    for key, gradient in gradients.items():
        numpy.testing.assert_allclose(gradient, expected[key], rtol=1e-10)


def test_outputs_of_a_loop_have_one_cotangent_at_a_time():
    h, w = numpy.ones((BATCH, SIZE)), 0.5

    def loss(w):
        return np.sum(remat.scan(lambda h, _: (np.tanh(w * h), np.tanh(w * h)), h, length=STEPS, slots=4)[1] ** 2)

    outputs = STEPS * STATE
    # The outputs, their squares, and the cotangent with what it is made of: g * 2 * y.
    assert peak(grad(loss), w) <= 4 * outputs + 2 * MIB


STEP_SIZE, LENGTH = (32, 256), 1000
COPIES = 31 * 32 * 256 * 8
STEPS_OF_A_LOOP = {
    "matrix": lambda h, w: np.tanh(np.dot(h, w) + 0.1),
    "elementwise": lambda h, w: np.tanh(h * 1.1 + 0.1),
}


@pytest.mark.parametrize(("name", "count"), [("matrix", None), ("elementwise", None), ("elementwise", 31)])
def test_checkpointed_loop_saves_95_percent_beside_what_it_returns(name, count):
    step, start, w = STEPS_OF_A_LOOP[name], RNG.normal(size=STEP_SIZE), RNG.normal(size=(256, 256)) / 16

    def in_a_row(h, w):
        for _ in range(LENGTH):
            h = step(h, w)
        return np.sum(h)

    def checkpointed(h, w, length=LENGTH):
        final, checkpoints = remat.checkpointed_loop(lambda h: step(h, w), h, length, count)
        assert length < LENGTH or len(checkpoints) == 31
        return np.sum(final)

    wanted = (0, 1) if name == "matrix" else 0
    grad(checkpointed, wanted)(start, w, 64)  # what is imported and cached the first time does not count
    found = peak(grad(checkpointed, wanted), start, w, warm=False) - COPIES
    assert found <= 0.05 * peak(grad(in_a_row, wanted), start, w, warm=False)


def test_without_a_gradient_no_more_is_held_than_what_is_returned():
    start = numpy.ones(STEP_SIZE)
    found = peak(lambda: remat.checkpointed_loop(lambda h: numpy.tanh(h), start, LENGTH))
    assert found <= 2 * COPIES + 8 * start.nbytes + MIB // 4
