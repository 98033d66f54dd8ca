"""Arguments in the order of another library get an error with the call that is meant."""

import numpy
import pytest

import remat
from remat.errors import ProblemError

ONES, ALL = numpy.ones(3), numpy.ones((5, 3))


def step(carry, x=None):
    return carry if x is None else (carry, x)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: remat.scan(ONES, step, ALL, slots=2), "write remat.scan(step, init, xs, ...)"),
        (lambda: remat.while_loop(ONES, step, step, slots=2), "write remat.while_loop(cond, body, init, slots=...)"),
        (lambda: remat.checkpoint(ONES, step), "write remat.checkpoint(fn, x)"),
        (lambda: remat.checkpoint(ONES), "write remat.checkpoint(f, x) for remat.checkpoint(f(x))"),
        (lambda: remat.checkpoint_segment(None, [ONES], step), "write remat.checkpoint_segment(fn, inputs)"),
        (lambda: remat.CheckpointGroup(None), "write remat.CheckpointGroup()"),
        (lambda: remat.checkpointed_loop(ONES, step, 10), "write checkpointed_loop(func, initial_state, seq_length)"),
        (lambda: remat.checkpointed_loop(step, 10, ONES), "write checkpointed_loop(func, initial_state, seq_length)"),
        (lambda: remat.binomial_checkpoint(10, step, 3), "write binomial_checkpoint(function, sequence_length, "),
        (lambda: remat.chain(ONES, [step], memory="1 MiB"), "write remat.chain(stages, x, memory=...)"),
        (lambda: remat.measure(ONES, [step]), "write remat.measure(stages, sample)"),
        (lambda: remat.plan("1 MiB", remat.Loop(10)), "write remat.plan(problem, memory='1 MiB')"),
        (lambda: remat.grad((0, 1), step), "write remat.grad(f, wrt=(0, 1))"),
    ],
)
def test_the_error_has_the_call_that_is_meant(call, meant):
    with pytest.raises(ProblemError) as caught:
        call()
    assert meant in str(caught.value)
