"""Derivatives of loops on JAX beyond the first, in both modes and for batches, against those of lax.scan."""

import functools

import jax
import jax.numpy as jnp
import pytest

import remat
from tests.frameworks.jax.programs import close, losses

pytestmark = pytest.mark.usefixtures("quick")


def rnn():
    """A small cell, its parameters, initial carry and inputs."""
    params = {"W": jnp.cos(jnp.arange(9.0)).reshape(3, 3), "b": jnp.linspace(0.1, 0.3, 3)}
    init = jnp.linspace(-0.5, 0.5, 3), jnp.float64(0.3)
    xs = jnp.sin(jnp.arange(21.0)).reshape(7, 3)

    def cell(params, carry, x):
        h, c = carry
        h = jnp.tanh(params["W"] @ h + params["b"] + x * c)
        return (h, c * jnp.cos(h[0])), h.sum()

    return cell, params, init, xs


@pytest.fixture(scope="module")
def model():
    with jax.enable_x64(True):
        cell, params, init, xs = rnn()
        along = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(float(leaf.size))).reshape(leaf.shape), params)
        plain, ours = losses(cell, slots=3)
        return params, along, lambda p: plain(p, init, xs), lambda p: ours(p, init, xs), init, xs


def dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def push(f, along):
    return lambda p: jax.jvp(f, (p,), (along,))[1]


def pull(f, along):
    return lambda p: dot(jax.grad(f)(p), along)


ORDERS = {
    "forward": lambda f, v: push(f, v),
    "forward over reverse": lambda f, v: push(jax.grad(f), v),
    "reverse over forward": lambda f, v: jax.grad(push(f, v)),
    "forward over forward": lambda f, v: push(push(f, v), v),
    "reverse over reverse": lambda f, v: jax.grad(pull(f, v)),
    "reverse over forward over reverse": lambda f, v: jax.grad(lambda p: dot(push(jax.grad(f), v)(p), v)),
    "forward over reverse over reverse": lambda f, v: push(jax.grad(pull(f, v)), v),
    "linearized": lambda f, v: lambda p: jax.linearize(f, p)[1](v),
}


REST = ("reverse over forward over reverse", "reverse over forward", "linearized")  # others of their orders are run


@pytest.mark.parametrize("order", [pytest.param(each, marks=[pytest.mark.full] * (each in REST)) for each in ORDERS])
def test_every_order(model, order):
    params, along, plain, ours, *_ = model
    derived = ORDERS[order]
    expected = jax.jit(derived(plain, along))(params)
    close(jax.jit(derived(ours, along))(params), expected, 1e-11)


def test_outside_of_jit(model):
    params, along, plain, ours, *_ = model
    close(push(jax.grad(ours), along)(params), jax.jit(push(jax.grad(plain), along))(params), 1e-11)


def test_jacobians_and_hessians():
    def last(scan, h):
        return scan(lambda h, _: (jnp.sin(h) * jnp.roll(h, 1), None), h)[0]

    ours = functools.partial(last, functools.partial(remat.scan, xs=None, length=6, slots=2))
    plain = functools.partial(last, functools.partial(jax.lax.scan, xs=None, length=6))
    h = jnp.linspace(0.3, 0.9, 4)
    expected, hessian = jax.jit(lambda h: (jax.jacrev(plain)(h), jax.hessian(lambda h: plain(h).sum())(h)))(h)
    close(jax.jacrev(ours)(h), expected)
    close(jax.jacfwd(ours)(h), expected)
    close(jax.jit(jax.hessian(lambda h: ours(h).sum()))(h), hessian)
    close(jax.jit(jax.jacrev(jax.jacrev(lambda h: ours(h).sum())))(h), hessian)


def test_other_arguments_move_the_second_time(model):
    params, along, _, _, init, xs = model
    cell = rnn()[0]
    plain, ours = losses(cell, slots=3)

    def mixed(f):
        return jax.jit(jax.grad(lambda init, xs: dot(jax.grad(f)(params, init, xs), along), (0, 1)))

    close(mixed(ours)(init, xs), mixed(plain)(init, xs), 1e-11)
    change = jax.tree.map(jnp.ones_like, init)

    def forward(f):
        return jax.jit(lambda init: jax.jvp(lambda init: jax.grad(f)(params, init, xs), (init,), (change,))[1])(init)

    close(forward(ours), forward(plain), 1e-11)


def test_a_penalty_on_gradients_of_a_batch(model):
    params, _, _, _, init, xs = model
    cell = rnn()[0]
    plain, ours = losses(cell, slots=3)
    many = jnp.stack([xs, 0.5 * xs])

    def penalty(f):
        return jax.jit(
            jax.grad(
                lambda p: sum(
                    (g**2).sum() for g in jax.tree.leaves(jax.vmap(jax.grad(f, 2), (None, None, 0))(p, init, many))
                )
            )
        )

    close(penalty(ours)(params), penalty(plain)(params), 1e-11)


def test_hessian_products_do_not_hold_all_states():
    def product(steps):
        def loss(h):
            return remat.scan(lambda h, _: (jnp.sin(h), None), h, length=steps, slots=5)[0].sum()

        h = jnp.ones(100)
        return jax.jit(lambda h: jax.jvp(jax.grad(loss), (h,), (h,))[1]).lower(h).compile()

    small, large = product(50), product(5000)
    assert large.memory_analysis().temp_size_in_bytes == small.memory_analysis().temp_size_in_bytes


def test_second_derivatives_know_how_many_steps_there_are():
    def twice(scan, steps):
        def last(k):
            return scan(lambda c, _: (jnp.sin(c * k) + 0.3 * c, None), jnp.float64(0.5), None, length=steps)[0]

        return jax.grad(jax.grad(last))

    few, lengths = functools.partial(remat.scan, slots=5), (6, 7, 12)
    expected = jax.jit(lambda k: [twice(jax.lax.scan, steps)(k) for steps in lengths])(1.1)
    close([twice(few, steps)(1.1) for steps in lengths], expected)
    close(jax.jit(lambda k: [twice(few, steps)(k) for steps in lengths[:2]])(1.1), expected[:2])


@pytest.mark.parametrize("order", ["forward over reverse", "reverse over reverse"])
def test_steps_with_rules_of_their_own(order):
    """A rule that is no derivative, as one that clips gradients, is the same rule the second time."""

    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, bar: (jnp.clip(bar, -0.5, 0.5),))

    def loss(scan, h):
        return scan(lambda c, _: (jnp.sin(clipped(c)) + c * c, None), h, None, length=3)[0]

    ours = functools.partial(loss, functools.partial(remat.scan, slots=2))
    derived = ORDERS[order]
    close(derived(ours, 1.0)(0.7), derived(functools.partial(loss, jax.lax.scan), 1.0)(0.7))
    cond, body = (lambda c: c[0] < 3), lambda c: (c[0] + 1, jnp.sin(clipped(c[1])) + c[1] ** 2)
    if order == "forward over reverse":
        found = derived(lambda h: remat.while_loop(cond, body, (0, h), slots=2)[1], 1.0)(0.7)
        close(found, derived(functools.partial(loss, jax.lax.scan), 1.0)(0.7))


def _nest(scan, segment, h):
    """A loop of loops and of a segment with a loop, whose function has a slope of its own."""

    @jax.custom_jvp
    def gentle(x):
        return jnp.tanh(x)

    gentle.defjvp(lambda x, dx: (jnp.tanh(x[0]), 0.5 * dx[0] * jnp.cos(x[0])))

    def inner(h, _):
        return gentle(h) * 1.1, None

    def outer(h, _):
        h = scan(inner, h, None, length=1)[0]
        return segment(lambda h: jax.lax.scan(inner, h, None, length=2)[0])(h) * 1.2, None

    return (scan(outer, h, None, length=2)[0] ** 2).sum()


@pytest.mark.parametrize("order", ["forward over reverse", "reverse over reverse"])
def test_loops_inside_of_loops(order):
    """Arguments that only a derivative of the inner loop's VJP reads stay; and rules are asked as often as by JAX."""
    h, along = jnp.array([[0.3, -0.7], [1.1, 0.2]]), jnp.ones(2)
    few = functools.partial(remat.scan, slots=1)
    segments = (remat.drop, jax.checkpoint) if order == "forward over reverse" else (jax.checkpoint,) * 2
    ours, plain = (functools.partial(_nest, *each) for each in zip((few, jax.lax.scan), segments, strict=True))
    derived = lambda f: jax.jit(jax.vmap(ORDERS[order](f, along)))(h)  # noqa: E731
    close(derived(ours), derived(plain))


@pytest.mark.parametrize("around", [jax.checkpoint, lambda f: lambda w: jax.lax.map(f, jnp.stack([w, w]))])
def test_gradients_of_members_that_use_a_named_axis_are_differentiated_with_what_is_around_them(around):
    def member(w, h, loop):
        def step(h, _):
            return jnp.sin(h * w) - jax.lax.pmean(h, "members"), None

        return jax.grad(lambda h: loop(step, h, None, length=4)[0])(h)

    def loss(w, loop):
        members = jax.vmap(lambda h: member(w, h, loop), axis_name="members")
        return jnp.sum(around(lambda w: members(jnp.linspace(0.1, 0.5, 3) * w))(w))

    found = jax.value_and_grad(loss)(1.3, functools.partial(remat.scan, slots=2))
    close(found, jax.value_and_grad(loss)(1.3, jax.lax.scan))
