"""`remat.diffrax.RematAdjoint`: gradients of diffrax's own adjoint, in both modes, for any number of steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat

diffrax = pytest.importorskip("diffrax")


@pytest.fixture(autouse=True)
def doubles_compiled_quickly():
    with jax.enable_x64(True):
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


def solve(w, y0, adjoint, saveat, max_steps=64, controller=None):
    term = diffrax.ODETerm(lambda t, y, w: jnp.tanh(w @ y) - 0.1 * y)
    controller = controller or diffrax.PIDController(rtol=1e-3, atol=1e-3)
    solution = diffrax.diffeqsolve(
        term,
        diffrax.Bosh3(),
        0.0,
        2.0,
        0.2,
        y0,
        w,
        adjoint=adjoint,
        saveat=saveat,
        max_steps=max_steps,
        stepsize_controller=controller,
    )
    return jnp.sum(solution.ys**2)


W, Y0 = np.array([[0.5, -0.3], [0.2, 0.4]]), np.array([1.0, 0.5])
SAVEATS = {"t1": lambda: diffrax.SaveAt(t1=True), "ts": lambda: diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 7))}


@pytest.mark.parametrize(
    "saveat",
    [pytest.param(value, marks=[pytest.mark.full] * (name != "t1"), id=name) for name, value in SAVEATS.items()],
)
def test_gradients_are_those_of_diffrax_in_no_more_memory(saveat):
    ours, theirs = remat.diffrax.RematAdjoint(slots=3), diffrax.RecursiveCheckpointAdjoint(checkpoints=3)
    want, got = (jax.jit(jax.grad(lambda w, a=a: solve(w, Y0, a, saveat()))).lower(W).compile() for a in (theirs, ours))
    np.testing.assert_allclose(got(W), want(W), rtol=1e-12)
    assert got.memory_analysis().temp_size_in_bytes <= want.memory_analysis().temp_size_in_bytes


@pytest.mark.full
def test_members_of_a_batch_and_an_unbounded_number_of_steps():
    ours, theirs = remat.diffrax.RematAdjoint(slots=3), diffrax.RecursiveCheckpointAdjoint(checkpoints=3)
    saveat = SAVEATS["t1"]()
    ys = np.stack([Y0, 3 * Y0])
    each = jax.jit(jax.vmap(jax.grad(lambda w, y: solve(w, y, ours, saveat, None)), (None, 0)))(W, ys)
    want = jax.jit(jax.grad(lambda w, y: solve(w, y, theirs, saveat)))
    for got, y in zip(each, ys, strict=True):
        np.testing.assert_allclose(got, want(W, y), rtol=1e-10)


@pytest.mark.full
def test_a_hessian_product_and_forward_mode():
    adjoint, saveat = remat.diffrax.RematAdjoint(memory="64 KiB"), SAVEATS["t1"]()

    def slope(y):
        # Steps of one length: diffrax takes adaptive ones for constants, and a difference would see them change.
        return jax.grad(lambda y: solve(W, y, adjoint, saveat, controller=diffrax.ConstantStepSize()))(y)

    product = jax.jit(lambda y: jax.jvp(slope, (y,), (Y0,))[1])(Y0)
    e = 1e-5
    gradient = jax.jit(slope)
    np.testing.assert_allclose(product, (gradient(Y0 + e * Y0) - gradient(Y0 - e * Y0)) / (2 * e), rtol=1e-6)


def noisy(rate, path, adjoint):
    drift = diffrax.ODETerm(lambda t, y, rate: -rate * y)
    noise = diffrax.ControlTerm(lambda t, y, rate: jnp.diag(0.5 * rate * y), path)
    terms = diffrax.MultiTerm(drift, noise)
    return jnp.sum(diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 2.0, 0.1, Y0, rate, adjoint=adjoint).ys)


def test_brownian_motion_that_cannot_be_drawn_again_is_refused():
    # Its keys are the bits of times, which XLA rounded differently in recomputed steps: the gradient was wrong.
    path = diffrax.UnsafeBrownianPath((2,), jax.random.key(0))
    for transform in (lambda fn: fn, jax.grad):
        with pytest.raises(remat.errors.StepError, match=r"VirtualBrownianTree.*ForwardMode"):
            transform(lambda rate: noisy(rate, path, remat.diffrax.RematAdjoint(slots=3)))(1.3)


@pytest.mark.full
def test_brownian_motion_of_a_tree_is_drawn_again_in_recomputed_steps():
    path = diffrax.VirtualBrownianTree(0.0, 2.0, 1e-3, (2,), jax.random.key(0))
    got, want = (
        jax.jit(jax.grad(lambda rate, adjoint=adjoint: noisy(rate, path, adjoint)))(1.3)
        for adjoint in (remat.diffrax.RematAdjoint(slots=3), diffrax.RecursiveCheckpointAdjoint(checkpoints=3))
    )
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_it_takes_one_budget():
    for budget in ({}, {"slots": 3, "memory": "1 MiB"}):
        with pytest.raises(remat.errors.ProblemError, match=r"slots= or memory="):
            remat.diffrax.RematAdjoint(**budget)
