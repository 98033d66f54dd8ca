"""`while_loop` on JAX in batches, inside other loops, in forward mode and in derivatives of derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy
import pytest
from jax import lax

import remat
from tests.frameworks.jax.while_programs import (
    ENDS,
    XS,
    B,
    W,
    X,
    assert_same,
    compare,
    gradients,
    ours,
    plain,
    recurrence,
)

pytestmark = pytest.mark.usefixtures("quick")


def test_vmap_of_the_gradient():
    compare(lambda loop: jax.vmap(gradients(loop), ((None, None), 0, 0))((W, B), XS, ENDS))
    compare(lambda loop: jax.jit(jax.vmap(gradients(loop), ((None, 0), 1, None)))((W, XS), XS.T, 6))


@pytest.mark.parametrize("ends", [ENDS, 6, numpy.zeros(4, int)], ids=["different", "equal", "none begins"])
def test_gradient_of_a_vmap(ends):
    def of(loop, params, xs):
        each = jax.vmap(lambda x, end: recurrence(loop, params, x, end), (0, None if numpy.ndim(ends) == 0 else 0))
        return jnp.sum(each(xs, ends) * jnp.arange(1.0, 5.0))

    compare(lambda loop: jax.jit(jax.grad(partial(of, loop), (0, 1)))((W, B), XS))


def test_vmap_in_vmap_and_a_gradient_between_them():
    def ends_of(loop, params, x):
        return jnp.sum(jax.vmap(lambda end: recurrence(loop, params, x, end))(ENDS))

    compare(lambda loop: jax.grad(lambda p: jnp.sum(jax.vmap(lambda x: ends_of(loop, p, x))(XS)))((W, B)))
    compare(lambda loop: jax.vmap(jax.grad(partial(ends_of, loop)), (None, 0))((W, B), XS))


def test_a_member_that_has_ended_or_never_begins_spoils_nothing():
    """Steps beyond a member's end are inf or nan, and so is the first one of a member that does not begin."""

    def of(x, low, w):
        """Comes down to `low`; below it, the root has no value and at it no derivative."""
        return remat.while_loop(lambda x: x > low, lambda x: x - w * jnp.sqrt(x - low) - 0.01, x, slots=2)

    x, low = jnp.array([1.0, 0.3, 0.5, -1.0]), jnp.array([0.0, 0.3, 0.1, 0.2])
    alone = [jax.grad(of, (0, 1, 2))(*each, 0.2) for each in zip(x, low, strict=True)]
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *alone)
    assert all(bool(jnp.all(jnp.isfinite(each))) for each in stacked)
    assert_same(jax.vmap(jax.grad(of, (0, 1, 2)), (0, 0, None))(x, low, 0.2), stacked)
    together = jax.grad(lambda *args: jnp.sum(jax.vmap(of, (0, 0, None))(*args)), (0, 1, 2))(x, low, 0.2)
    assert_same(together, (*stacked[:2], jnp.sum(stacked[2])))
    _, dot = jax.jvp(lambda w: jax.vmap(of, (0, 0, None))(x, low, w), (0.2,), (1.0,))
    assert_same(dot, stacked[2])


def test_a_member_whose_gradient_is_not_finite_keeps_it_to_itself():
    def of(x, end):
        return remat.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, jnp.sqrt(s[1])), (0, x), slots=2)[1]

    found = jax.grad(lambda x: jnp.sum(jax.vmap(of)(x, jnp.array([3, 2, 0]))))(jnp.array([0.0, 0.5, 0.0]))
    assert not jnp.isfinite(found[0])
    assert_same(found[1:], jnp.array([jax.grad(lambda x: jnp.sqrt(jnp.sqrt(x)))(0.5), 1.0]))


def test_steps_and_conditions_that_talk_over_a_named_axis():
    def of(loop, x):
        body = lambda s: (s[0] + 1, jnp.sin(s[1]) + 0.3 * lax.pmean(s[1], "members"))  # noqa: E731
        return jnp.sum(loop(lambda s: s[0] < 6, body, (0, x))[1])

    compare(lambda loop: jax.vmap(jax.grad(partial(of, loop)), axis_name="members")(XS))
    compare(lambda loop: jax.grad(lambda x: jnp.sum(jax.vmap(partial(of, loop), axis_name="members")(x)))(XS))

    def until(loop, x):
        return loop(lambda x: lax.pmax(lax.stop_gradient(x), "members") < 6.0, lambda x: x * 1.2, x)

    compare(lambda loop: jax.grad(lambda x: jnp.sum(jax.vmap(partial(until, loop), axis_name="members")(x)))(X))


def scan_of(slots):
    return lambda step, init, xs: remat.scan(step, init, xs, slots=slots)


def vmap_of_grad(of):
    return jax.vmap(jax.grad(of, (0, 1)), (None, 0))(W, abs(XS))


def grad_of_vmap(of):
    return jax.grad(lambda w, x: jnp.sum(jax.vmap(of, (None, 0))(w, x)), (0, 1))(W, abs(XS))


@pytest.mark.parametrize(
    ("kind", "transform"),
    [
        ("while in while", vmap_of_grad),
        pytest.param("while in while", grad_of_vmap, marks=pytest.mark.full),
        pytest.param("scan in while", vmap_of_grad, marks=pytest.mark.full),
        ("while in scan", grad_of_vmap),
    ],
)
def test_loops_in_loops(kind, transform):
    def of(loop, scan, w, x):
        def inner(end, h):
            return loop(lambda s: s[0] < end, lambda s: (s[0] + 1, jnp.sin(w @ s[1] + h)), (0, h))[1]

        def inner_scan(h):
            return scan(lambda s, a: ((s[0] + 1, jnp.sin(w @ s[1] + a * h)), s[0]), (0, h), jnp.arange(3.0))[0][1]

        if kind == "while in scan":
            h, ys = scan(lambda h, end: (inner(end, h), h[0]), x, jnp.arange(4))
            return jnp.sum(h) + jnp.sum(ys)
        step = inner_scan if kind == "scan in while" else None
        body = lambda s: (s[0] + 1, (step(s[1]) if step else inner(s[0], s[1])) + 0.1 * s[1])  # noqa: E731
        return jnp.sum(loop(lambda s: s[0] < 4, body, (0, x))[1])

    ways = (ours(2), scan_of(2)), (plain(5), lax.scan)
    assert_same(*jax.jit(lambda: [transform(partial(of, loop, scan)) for loop, scan in ways])())


def test_forward_mode():
    def of(loop):
        def run(x, end):
            return jax.jvp(lambda x, W: recurrence(loop, (W, B), x, end), (x, W), (x + 1.0, jnp.ones((2, 2))))

        return run(X, 9), jax.vmap(run)(XS, ENDS), jax.jacfwd(lambda x: recurrence(loop, (W, B), x, 9))(X)

    compare(of)


def test_forward_over_reverse():
    def of(loop):
        def hvp(x, end):
            return jax.jvp(jax.grad(lambda x: recurrence(loop, (W, B), x, end)), (x,), (x + 1.0,))

        hessian = jax.hessian(lambda b: recurrence(loop, (W, b), X, 9))(B)
        return jax.vmap(hvp)(XS, ENDS), hessian

    compare(of)


def test_forward_over_forward_and_reverse_over_forward():
    def of(loop):
        def dot(x):
            return jax.jvp(lambda x: recurrence(loop, (W, B), x, 8), (x,), (x + 1.0,))[1]

        return jax.jvp(dot, (X,), (X,)), jax.grad(dot)(X)

    compare(of)


def test_reverse_over_reverse_says_what_to_do_instead():
    of = jax.grad(lambda x: recurrence(ours(2), (W, B), x, 5))
    for run in (of, jax.jit(of)):
        with pytest.raises(remat.StepError, match=r"(?s)differentiated twice in reverse.*jax\.hessian.*remat\.scan"):
            jax.grad(lambda x, run=run: jnp.sum(run(x)))(X)


def test_other_ways_to_call_it():
    def of(loop):
        run = partial(recurrence, loop, (W, B))
        value, linear = jax.linearize(lambda x: run(x, 8), X)
        back = jax.vjp(jax.jit(lambda x: run(x, 8)), X)[1](2.0)
        both = jax.value_and_grad(jax.checkpoint(run))(X, 8)
        branch = jax.vmap(jax.grad(lambda x: lax.cond(x[0] > 0.0, lambda x: run(x, 4), jnp.sum, x)))(XS)
        return value, linear(X + 1.0), back, both, jax.jacrev(lambda x: jnp.stack([run(x, 3), x[0]]))(X), branch

    compare(of)


def test_without_jit_and_with_jax_looking_for_leaks():
    of = jax.grad(lambda x: remat.while_loop(lambda x: x < 3.0, lambda x: x * x + 0.1, x, slots=2))
    expected = jax.jit(of)(1.1)
    with jax.disable_jit():
        assert_same(of(1.1), expected)
    with jax.checking_leaks():
        assert_same(jax.jit(lambda x: of(x))(1.1), expected)


def test_loops_inside_of_loops_for_a_batch_with_a_rule_for_cotangents():
    """A rule of jax.custom_vjp has no tangents of a batch, and none are asked for in reverse mode."""

    @jax.custom_vjp
    def halved(x):
        return jnp.sin(x)

    halved.defvjp(lambda x: (jnp.sin(x), x), lambda x, bar: (0.5 * bar * jnp.cos(x),))

    def repeated(steps, body):
        def again(c):
            return c[0] + 1, body(c[1])

        return lambda h: remat.while_loop(lambda c: c[0] < steps, again, (0, h), slots=2)[1]

    loops, calls = repeated(2, repeated(2, halved)), lambda h: halved(halved(halved(halved(h))))
    h = jnp.array([0.3, 0.7])
    slopes = [jax.jit(jax.grad(lambda h, f=f: jax.vmap(f)(h).sum()))(h) for f in (loops, calls)]
    numpy.testing.assert_allclose(*slopes, rtol=1e-12)
