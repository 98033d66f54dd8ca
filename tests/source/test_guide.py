"""The user guide's promise, verbatim: plain loops in plain NumPy, checkpointed, with exact gradients for x, W and b."""

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad

import remat

rng = np.random.default_rng(0)
x0, W0, b0 = rng.standard_normal(8) * 0.3, rng.standard_normal((8, 8)) * 0.3, rng.standard_normal(8) * 0.1


def plain_gradients(turns=1000):
    def model(x, W, b):
        for _ in range(turns):
            x = anp.tanh(x @ W + b)
        return anp.sum(x)

    return grad(model, (0, 1, 2))(x0, W0, b0)


def rnn_model(x, W, b):
    state = x
    for i in range(1000):  # This loop will be automatically checkpointed
        state = np.tanh(state @ W + b)
    return state


def manual_model(x, W, b, seq_length=1000):
    def rnn_step(state):
        return np.tanh(state @ W + b)

    # Use checkpointed_loop instead of a regular for loop
    final_state, checkpoints = remat.checkpointed_loop(rnn_step, x, seq_length, num_checkpoints=31)
    return final_state


def test_the_automatic_approach():
    df = remat.grad_with_checkpointing(rnn_model, wrt=(0, 1, 2), num_checkpoints=31)
    for ours, plain in zip(df(x0, W0, b0), plain_gradients(), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-300)
    df = remat.grad_with_checkpointing(rnn_model, num_checkpoints=31)
    np.testing.assert_allclose(df(x0, W0, b0), plain_gradients()[0], rtol=1e-10)


def test_the_manual_approach():
    df = remat.grad(manual_model, wrt=(0, 1, 2))
    for ours, plain in zip(df(x0, W0, b0), plain_gradients(), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-300)


def test_the_plan_is_run_as_claimed():
    marked = remat.checkpointed(slots=31)(rnn_model)
    with remat.profile() as run:
        grad(lambda x: anp.sum(marked(x, W0, b0)))(x0)
    [call] = run.calls
    assert call.trace.forward_steps == call.plan.forward_steps == 3439
    assert "1000 iterations, 3439 step evaluations" in marked.explain()


@pytest.mark.parametrize(("wrt", "names"), [((0,), "x"), (1, "W"), ("b", "b"), (("b", 0), "bx")])
def test_arguments_by_position_or_name(wrt, names):
    by_name = dict(zip("xWb", plain_gradients(), strict=True))
    found = remat.grad_with_checkpointing(rnn_model, wrt=wrt)(x0, W=W0, b=b0)
    found = found if isinstance(found, tuple) else (found,)
    for ours, name in zip(found, names, strict=True):
        np.testing.assert_allclose(ours, by_name[name], rtol=1e-10, atol=1e-300)


def test_the_cotangent_of_the_result_can_be_given():
    def square(x):
        return x**2

    assert remat.grad(square)(3) == 6.0
    np.testing.assert_array_equal(remat.grad(square)(np.array([1.0, 2.0])), [2.0, 4.0])
    bar = np.array([1.0, 10.0])
    np.testing.assert_array_equal(remat.grad(square, init_grad=bar)(np.array([1.0, 2.0])), [2.0, 40.0])
    with pytest.raises(remat.errors.ProblemError, match=r"wrt names 'z', and [\w.<>]*square has the arguments x"):
        remat.grad(square, wrt="z")
    with pytest.raises(remat.errors.ProblemError, match="argument 3"):
        remat.grad(square, wrt=3)
    torch = pytest.importorskip("torch")
    with pytest.raises(remat.errors.ProblemError, match=r"x is an array of PyTorch.* with loss\.backward\(\)"):
        remat.grad_with_checkpointing(square)(torch.ones(3))


@pytest.mark.parametrize(("settings", "slots"), [({}, 2), ({"num_checkpoints": 6}, 6)])
def test_a_decorated_function_keeps_its_own_budget_unless_another_is_given(settings, slots):
    @remat.checkpointed(slots=2)
    def model(x, W):
        for _ in range(30):
            x = np.tanh(x @ W)
        return x

    with remat.profile() as run:
        remat.grad_with_checkpointing(model, wrt=(0, 1), **settings)(x0, W0)
    assert run.calls[0].plan.forward_steps == remat.plan(remat.Loop(30), slots=slots).forward_steps


def test_functions_without_loops_need_no_source():
    """Lambdas, and functions made by exec, have the plain gradient; those with loops are refused."""
    made = {"np": np}
    exec("def flat(x): return np.sum(np.sin(x))", made)
    exec("def looped(x):\n    while x[0] > 1: x = np.sin(x)\n    return x", made)
    for fn in (made["flat"], eval("lambda x: np.sum(np.sin(x))", made)):
        for gradient in (remat.grad(fn), remat.grad_with_checkpointing(fn, num_checkpoints=2)):
            np.testing.assert_allclose(gradient(np.ones(2)), np.cos(np.ones(2)), rtol=1e-15)
    with pytest.raises(remat.errors.SourceError, match="no source of looped"):
        remat.grad(made["looped"])
