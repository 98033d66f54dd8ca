"""What is batched and what has tangents is what JAX's own vmap and jvp say of the step, as in jax.lax.scan."""

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg as solvers
import numpy as np
import pytest
from jax import lax

import remat

pytestmark = pytest.mark.usefixtures("quick")
WS = np.array([0.7, 0.9, 1.1])


def scan(step, init, **kwargs):
    return remat.scan(step, init, slots=2, **kwargs)


def noisy(w, key, loop, counting):
    def step(carry, _):
        h, key, i = carry
        key, now = (key, jax.random.fold_in(key, i)) if counting else jax.random.split(key)
        return (h * w * jax.random.bernoulli(now, 0.5, (2,)), key, i + 1), jnp.sum(h)

    return jnp.sum(loop(step, (jnp.ones(2), key, 0), length=5)[1])


@pytest.mark.parametrize(
    ("impl", "counting"),
    [
        ("rbg", True),
        ("threefry2x32", False),
        pytest.param("rbg", False, marks=pytest.mark.full),
        pytest.param("threefry2x32", True, marks=pytest.mark.full),
    ],
)
def test_members_that_share_a_key_draw_the_same_numbers_in_the_reverse_sweep(impl, counting):
    key = jax.random.key(0, impl=impl)
    want = jax.vmap(jax.grad(lambda w: noisy(w, key, lax.scan, counting)))(WS)
    got = jax.vmap(jax.grad(lambda w: noisy(w, key, scan, counting)))(WS)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_shared_key_of_a_while_loop_stays_unbatched():
    key = jax.random.key(1, impl="rbg")

    def run(w):
        def body(carry):
            h, i = carry
            return h * w * (1 + jax.random.bernoulli(jax.random.fold_in(key, i))), i + 1

        return remat.while_loop(lambda carry: carry[1] < 4, body, (1.0, 0), slots=2)[0]

    np.testing.assert_allclose(jax.vmap(jax.grad(run))(WS), [jax.grad(run)(w) for w in WS], rtol=1e-6)


def with_ref(w, loop):
    def step(h, _):
        square = jax.new_ref(jnp.zeros(()))
        square[...] = w * w
        return jnp.sin(h * square[...]), None

    return loop(step, jnp.float64(0.5), length=4)[0]


@pytest.mark.parametrize(
    "transform", [jax.grad, lambda f: lambda w: jax.jvp(f, (w,), (1.0,)), lambda f: lambda w: jax.vmap(f)(w * WS)]
)
def test_a_mutable_array_that_is_made_in_a_step_carries_tangents_and_batches(transform):
    np.testing.assert_allclose(
        transform(lambda w: with_ref(w, scan))(0.7), transform(lambda w: with_ref(w, lax.scan))(0.7), rtol=1e-12
    )


def while_with_ref(w, loop):
    def body(carry):
        h, i = carry
        held = jax.new_ref(h)
        held[...] = jnp.sin(held[...] * w)
        return held[...], i + 1

    return loop(lambda carry: carry[1] < 4, body, (jnp.float64(0.5), 0))[0]


def while_loop(cond, body, init):
    return remat.while_loop(cond, body, init, slots=2)


@pytest.mark.parametrize(("run", "ours", "theirs"), [(with_ref, scan, lax.scan), (while_with_ref, while_loop, None)])
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad, lambda f: lambda w: jax.jvp(f, (w,), (1.0,))[1]])
def test_mutable_arrays_made_in_a_step_can_be_compiled(run, ours, theirs, transform):
    # jit rewrites mutable arrays as values, inside our primitives too. lax.while_loop has no gradient: eager is right.
    got = jax.jit(transform(lambda w: run(w, ours)))(0.7)
    want = transform(lambda w: run(w, ours if theirs is None else theirs))(0.7)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.full
def test_mutable_arrays_made_in_a_replaced_loop_can_be_compiled():
    with remat.replace_loops(slots=2):
        got = jax.jit(jax.grad(lambda w: with_ref(w, lax.scan)))(0.7)
    np.testing.assert_allclose(got, jax.grad(lambda w: with_ref(w, lax.scan))(0.7), rtol=1e-12)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_gradients_of_python_numbers_are_weakly_typed_as_those_of_lax_are(transform):
    def last(w, loop):
        return loop(lambda c, _: (jnp.sin(c * w), None), jnp.float32(1.0), length=3)[0]

    ours, theirs = (transform(jax.grad(lambda w, loop=loop: last(w, loop)))(0.5) for loop in (scan, lax.scan))
    assert ours.weak_type == theirs.weak_type is True
    assert ours.dtype == theirs.dtype


@jax.custom_vjp
def asks(x, y):
    return x * y


def _asks_fwd(x, y):
    return x.value * y.value, (x.value, y.value, y.perturbed)


asks.defvjp(
    _asks_fwd, lambda kept, bar: (bar * kept[1] * (1.0 if kept[2] else 5.0), bar * kept[0]), symbolic_zeros=True
)


def test_a_rule_is_told_that_a_carry_behind_stop_gradient_is_not_perturbed():
    def loss(w, loop):
        def step(carry, _):
            return (jnp.tanh(carry[0] * w), lax.stop_gradient(carry[0])), asks(*carry)

        (h, _), ys = loop(step, (0.5, 0.3), length=3)
        return h + jnp.sum(ys)

    np.testing.assert_allclose(jax.grad(loss)(0.7, scan), jax.grad(loss)(0.7, lax.scan), rtol=1e-12)


CUTS = {
    "stop_gradient": lax.stop_gradient,
    "cast": lambda x: x.astype(int) * 1.0,
    "comparison": lambda x: jnp.where(x > 0, 1.0, 0.0),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_carry_without_tangents_gets_none_in_forward_mode(cut):
    """With a tangent of zeros, the root of 0 would make it 0 · inf."""

    def loss(w, loop):
        def step(carry, _):
            h, s = carry
            return (jnp.tanh(h * w), cut(h * 0)), jnp.sqrt(s)

        (h, _), ys = loop(step, (0.5, 0.0), length=3)
        return h + jnp.sum(ys)

    for mode in (jax.jacfwd, lambda f: jax.jacfwd(jax.jacfwd(f))):
        want, got = (mode(lambda w, loop=loop: loss(w, loop))(0.7) for loop in (lax.scan, scan))
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_values_that_members_share_stay_unbatched_though_they_depend_on_the_batch():
    eqxi = pytest.importorskip("equinox.internal")

    def run(x, loop):
        def step(carry, _):
            x, count, top = carry
            return (jnp.sin(x) * 1.1, eqxi.nonbatchable(count + 1), jnp.maximum(top, eqxi.unvmap_max(x))), None

        return loop(step, (x, 0, 0.0), length=4)[0][0]

    def run_while(x):
        def go_on(carry):
            return eqxi.unvmap_any(carry[0] > 0.5) & (carry[1] < 9)

        body = lambda carry: (carry[0] * 0.8, eqxi.nonbatchable(carry[1] + 1))  # noqa: E731
        return remat.while_loop(go_on, body, (x, 0), slots=2)[0]

    np.testing.assert_allclose(jax.vmap(lambda x: run(x, scan))(WS), jax.vmap(lambda x: run(x, lax.scan))(WS))
    np.testing.assert_allclose(jax.vmap(run_while)(WS), WS * 0.8**4, rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(jax.grad(run_while))(WS), jnp.full(3, 0.8**4), rtol=1e-12)


def test_results_that_members_share_may_have_no_batch_axis():
    def mean(x, loop):
        return loop(lambda c, _: (lax.pmean(c * x, "i"), None), lax.pmean(x * 0 + 1.0, "i"), length=3)[0]

    def branch(x, y, loop):
        return loop(lambda y, _: (y, None), y, length=3)[0]

    for loop in (scan, lax.scan):
        shared = jax.vmap(lambda x, loop=loop: mean(x, loop), axis_name="i", out_axes=None)(WS)
        np.testing.assert_allclose(shared, 0.9**3, rtol=1e-12)
        branches = [lambda x, y, loop=loop: branch(x, y, loop)] * 2
        choose = lambda x, y, branches=branches: lax.cond(x < 0, *branches, x, y)  # noqa: E731
        assert jax.vmap(choose, (0, None), None)(WS, 3.0) == 3.0


def test_a_batch_of_no_members_has_results_without_members():
    def run(x):
        return remat.while_loop(lambda c: c[0] > 0.0, lambda c: (c[0] - 1.0, c[1] * x), (x, x), slots=2)[1]

    assert jax.vmap(run)(jnp.zeros(0)).shape == (0,)
    assert jax.vmap(jax.grad(lambda x: scan(lambda c, _: (c * x, c), x, length=3)[0]))(jnp.zeros(0)).shape == (0,)


MATRIX = np.eye(3) * 2 + 0.1
TRANSPOSED = {
    "linear_transpose": lambda product: jax.linear_transpose(product, jnp.ones(3))(jnp.ones(3))[0],
    "gmres": lambda product: jax.grad(lambda b: solvers.gmres(product, b)[0].sum())(jnp.ones(3)),
}


@pytest.mark.parametrize("case", TRANSPOSED.values(), ids=TRANSPOSED)
def test_a_loop_that_is_linear_can_be_transposed(case):
    def product(loop, **budget):
        return lambda v: loop(lambda carry, row: (carry, row @ carry), v, MATRIX, **budget)[1]

    np.testing.assert_allclose(case(product(remat.scan, slots=2)), case(product(lax.scan)), rtol=1e-6)


@jax.custom_batching.custom_vmap
def mapped(x):
    return jnp.tanh(x)


mapped.def_vmap(lambda size, batched, x: (jnp.tanh(x), batched[0]))


@jax.custom_vjp
def pulled(x):
    return jnp.sin(x)


pulled.defvjp(lambda x: (jnp.sin(x), x), lambda x, bar: (bar * jnp.cos(x),))


def test_forward_mode_needs_no_vjp_of_the_step():
    def unused(h):
        pulled(h)
        return jnp.tanh(h)

    for function in (mapped, unused):
        run = lambda w, function=function: scan(lambda h, _: (function(h * w), None), 0.5, length=3)[0]  # noqa: E731
        want = jax.jvp(lambda w: lax.scan(lambda h, _: (jnp.tanh(h * w), None), 0.5, length=3)[0], (0.7,), (1.0,))
        np.testing.assert_allclose(jax.jvp(run, (0.7,), (1.0,)), want, rtol=1e-12)
    with pytest.raises(remat.errors.StepError, match="cannot be differentiated"):
        jax.grad(lambda w: scan(lambda h, _: (mapped(h * w), None), 0.5, length=3)[0])(0.7)
    with pytest.raises(remat.errors.StepError, match="cannot be differentiated"):
        jax.grad(lambda w: remat.while_loop(lambda h: h < 2.0, lambda h: mapped(h * w) + 1, 0.5, slots=2))(0.7)


def test_a_jitted_step_is_batched_like_a_plain_one():
    def cell(carry, _):
        h, table = carry
        return (jnp.tanh(table @ h), table), None

    def temporaries(step):
        run = jax.vmap(lambda table, h: scan(step, (h, table), length=9)[0][0], (None, 0))
        args = jnp.eye(64), jnp.ones((32, 64))
        grad = jax.jit(jax.grad(lambda h: jnp.sum(run(args[0], h))))
        return grad.lower(args[1]).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(jax.jit(cell)) <= 1.5 * temporaries(cell)
