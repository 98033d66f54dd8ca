"""Checkpointed segments in derivatives of derivatives, in forward mode, and under a backward that is run again."""

import functools

import pytest

import remat

from .comparison import assert_same
from .segments import last_bit, plainly


def test_second_derivatives_are_those_of_the_plain_call(framework, x):
    np = framework.np

    def fn(x):
        return np.tanh(np.sin(x) * np.exp(x))

    def hessian(run):
        return framework.to_numpy(framework.hessian(lambda x: np.sum(run(fn, x) ** 2), x))

    def third(run):
        first = framework.grad(lambda x: np.sum(run(fn, x) ** 2))
        second = framework.grad(lambda x: np.sum(first(x) ** 2))
        return framework.to_numpy(framework.grad(lambda x: np.sum(second(x)))(x))

    assert_same(hessian(remat.checkpoint), hessian(plainly), 1e-13)
    assert_same(third(remat.checkpoint), third(plainly), 1e-13)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_forward_mode_and_jacobians_are_those_of_the_plain_call(framework, x):
    np = framework.np

    def both(run, x):
        y, z = run(lambda x: (np.exp(np.sin(x)), np.sum(x)), x)
        return y * z

    def forward(run):
        return framework.to_numpy(framework.jvp(functools.partial(both, run), x, x * 2))

    def jacobian(run):
        return framework.to_numpy(framework.jacobian(functools.partial(both, run), x))

    assert_same(forward(remat.checkpoint), forward(plainly), 1e-15)
    assert_same(jacobian(remat.checkpoint), jacobian(plainly), 1e-14)


def test_a_backward_over_a_retained_graph_recomputes_each_time(framework, x):
    np, counter = framework.np, framework.counter()

    def fn(x):
        counter.here(x)
        return np.exp(np.sin(x))

    pull = framework.vjp(lambda x: remat.checkpoint(fn, x), x)
    plain = framework.vjp(lambda x: np.exp(np.sin(x)), x)
    for times, cotangent in enumerate((x, x, x * 2), 1):
        found, expected = (framework.to_numpy(each(cotangent)) for each in (pull, plain))
        assert_same(found, expected, last_bit(framework))
        assert counter.count == 1 + times
