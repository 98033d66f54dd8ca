"""Loops that Python drives on JAX: any plan, traces, progress, and errors where they are traced."""

import jax
import jax.numpy as jnp
import pytest

import remat
from remat.planners import Chunks, KeepAll, Mixed
from tests.frameworks.jax.programs import Counter, close, losses, lstm

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({"slots": 4}, marks=pytest.mark.full),
        {"slots": 2, "planner": Chunks(7)},
        {"memory": 40, "planner": Mixed()},
        {"memory": 10**6, "planner": KeepAll()},
    ],
)
def test_any_plan_is_run_as_it_is(plan):
    cell, *args = lstm(steps=20)
    counter = Counter()

    def counted(params, carry, x):
        counter.here(carry[0])
        return cell(params, carry, x)

    made = remat.plan(remat.Loop(20, tape=3), **plan)
    plain, ours = losses(cell)[0], losses(counted, plan=made, driven=True)[1]
    with remat.profile() as run:
        found, count = counter.of(jax.value_and_grad(ours, (0, 1, 2)), *args)
    close(found, jax.value_and_grad(plain, (0, 1, 2))(*args))
    assert count == made.forward_steps
    trace = run.calls[0].trace
    assert (trace.forward_steps, run.calls[0].status, run.calls[0].framework) == (made.forward_steps, "done", "jax")


def test_a_pullback_can_be_called_twice():
    cell, *args = lstm(steps=9)
    plain, ours = losses(cell, slots=2, driven=True)
    _, pull = jax.vjp(ours, *args)
    expected = jax.vjp(plain, *args)[1](1.0)
    for _ in range(2):
        close(pull(1.0), expected)


def test_kept_states_are_not_donated():
    """The initial carry is the user's, and is still there afterwards."""
    h = jnp.ones(5)
    jax.grad(lambda w: remat.scan(lambda h, _: (jnp.sin(h * w), None), h, length=8, slots=2, driven=True)[0].sum())(1.1)
    assert float(h.sum()) == 5.0


def test_forward_mode_and_no_gradient():
    def last(h):
        return remat.scan(lambda h, _: (jnp.sin(h), h), h, length=5, slots=2, driven=True)

    plain = jax.lax.scan(lambda h, _: (jnp.sin(h), h), 0.5, length=5)
    close(last(jnp.float64(0.5)), plain)
    close(jax.jvp(lambda h: last(h)[0], (0.5,), (1.0,))[1], jax.grad(lambda h: last(h)[0])(0.5))


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: jax.vmap(f)], ids=["jit", "vmap"])
def test_a_traced_call_is_refused(wrap):
    def last(h):
        return remat.scan(lambda h, _: (jnp.sin(h), None), h, length=5, slots=2, driven=True)[0]

    with pytest.raises(remat.StepError, match="cannot be called inside jit"):
        wrap(last)(jnp.ones(3))
    with pytest.raises(remat.StepError, match="cannot be called inside jit"):
        wrap(jax.grad(lambda h: last(h).sum()))(jnp.ones((3, 2)))


def test_memory_is_planned_with_tapes_in_it():
    cell, *args = lstm(steps=50)
    plain, ours = losses(cell, memory="30 KiB", driven=True)
    with remat.profile() as run:
        found = jax.value_and_grad(ours, (0, 1, 2))(*args)
    close(found, jax.value_and_grad(plain, (0, 1, 2))(*args))
    call = run.calls[0]
    assert call.trace.forward_steps == call.plan.forward_steps
    assert call.trace.peak <= 30 * 1024


def test_cotangents_are_the_callers():
    """What comes in is not donated: it may be used elsewhere, or be one array for several leaves."""

    def last(h):
        return remat.scan(lambda h, _: (jnp.sin(h), None), h, length=8, slots=2, driven=True)[0]

    h = jnp.linspace(0.1, 0.5, 4)
    plain = jax.lax.scan(lambda h, _: (jnp.sin(h), None), h, length=8)[0]
    assert plain.shape == h.shape
    slope = jax.grad(lambda h: jax.lax.scan(lambda h, _: (jnp.sin(h), None), h, length=8)[0].sum())(h)
    close(jax.grad(lambda h: (2 * h + last(h) + last(h)).sum())(h), 2 + 2 * slope)
    pull, bar = jax.vjp(last, h)[1], jnp.ones(4)
    close([pull(bar), pull(bar), bar], [(slope,), (slope,), jnp.ones(4)])

    def swap(carry, _):
        return (jnp.sin(carry[1]), jnp.sin(carry[1])), None

    found = jax.grad(lambda h: sum(remat.scan(swap, (h, h), length=3, slots=1, driven=True)[0]).sum())(h)
    close(found, jax.grad(lambda h: sum(jax.lax.scan(swap, (h, h), length=3)[0]).sum())(h))
