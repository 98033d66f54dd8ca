"""What slots hold, by the temporaries of the compiled gradient: what residuals are computed from, and no more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat
from remat.errors import InfeasibleError
from remat.frameworks.jax.loops.residuals import Activity, StepVJP
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr


def temporaries(function, *args):
    return jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes


def test_parts_of_a_carry_that_are_handed_on_are_constants():
    def loss(table, h, xs, **budget):
        def step(carry, x):
            h, table = carry
            return (jnp.tanh(table @ h + x), table), None

        return jnp.sum(remat.scan(step, (h, table), xs, **budget)[0][0])

    args = jnp.eye(64) / 2, jnp.ones(64), jnp.ones((50, 64))
    table = 64 * 64 * 8
    for at in (0, 1):
        assert temporaries(jax.grad(lambda *args: loss(*args, slots=20), at), *args) < 3 * table
    want = jax.grad(lambda t, h, xs: jnp.sum(jax.lax.scan(lambda h, x: (jnp.tanh(t @ h + x), None), h, xs)[0]))(*args)
    np.testing.assert_allclose(jax.grad(lambda *args: loss(*args, slots=20))(*args), want, rtol=1e-12)


@pytest.mark.parametrize("kind", ["scan", "while_loop"])
def test_a_buffer_that_is_only_written_is_in_no_slot(kind):
    def loss(w, x, loop):
        def step(carry):
            i, x, out = carry
            x = jnp.sin(w * x) + 0.1
            return i + 1, x, out.at[i].set(x)

        return jnp.sum(loop(step, (0, x, jnp.zeros((60, 50))))[2] ** 2)

    def plain(step, init):
        return jax.lax.scan(lambda carry, _: (step(carry), None), init, length=60)[0]

    def ours(step, init):
        if kind == "while_loop":
            return remat.while_loop(lambda carry: carry[0] < 60, step, init, slots=20)
        return remat.scan(lambda carry, _: (step(carry), None), init, length=60, slots=20)[0]

    args = 1.1, jnp.ones(50)
    buffer = 60 * 50 * 8
    assert temporaries(jax.grad(lambda *args: loss(*args, ours)), *args) < 5 * buffer

    def both_orders(loop):
        return jax.jit(lambda w: jax.jvp(jax.grad(lambda w: loss(w, args[1], loop)), (w,), (1.0,)))(args[0])

    (first, second), want = both_orders(ours), both_orders(plain)
    np.testing.assert_allclose(first, want[0], rtol=1e-12)
    np.testing.assert_allclose(second, want[1], rtol=1e-10)


def test_a_batch_of_one_member_copies_no_buffer_in_each_step():
    """Nobody asks for a gradient: what the program reads, writes and holds is about what it is with JAX's own loop."""

    def compiled(loop, size):
        def fill(i, out):
            return loop(lambda carry: carry[0] < size, lambda carry: (carry[0] + 1, carry[1].at[carry[0]].set(1.0)),
                        (i, out))  # fmt: skip

        return jax.jit(jax.vmap(fill)).lower(jnp.zeros(1, int), jnp.zeros((1, size))).compile()

    ours = compiled(lambda *args: remat.while_loop(*args, slots=100), 4000)
    theirs = compiled(jax.lax.while_loop, 4000)
    traffic = [each.cost_analysis()["bytes accessed"] for each in (ours, theirs)]
    assert traffic[0] < 1.1 * traffic[1]
    assert ours.memory_analysis().temp_size_in_bytes < 4000


def test_a_buffer_of_an_inner_loop_is_in_no_slot_of_the_outer_one():
    def loss(w, loop):
        def fill(k, x, out):
            return loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1].at[3 * k + c[0]].set(x * w)), (0, out))[1]

        def step(carry):
            k, x, out = carry
            x = jnp.sin(w * x)
            return k + 1, x, fill(k, x, out)

        return jnp.sum(loop(lambda c: c[0] < 20, step, (0, 0.5, jnp.zeros(60)))[2] ** 2)

    def ours(cond, body, init):
        return remat.while_loop(cond, body, init, slots=16)

    want = jax.jit(jax.jacfwd(lambda w: loss(w, jax.lax.while_loop)))(0.9)
    compiled = jax.jit(jax.grad(lambda w: loss(w, ours))).lower(0.9).compile()
    np.testing.assert_allclose(compiled(0.9), want, rtol=1e-12)
    assert compiled.memory_analysis().temp_size_in_bytes < 16 * 60 * 8


def test_what_a_condition_reads_is_not_forgotten_in_second_derivatives():
    """The sum is read by no step, but says how many there are."""

    def loss(w):
        carry = remat.while_loop(
            lambda c: c[1] < 3.0, lambda c: (jnp.sin(c[0] * w) + 1, c[1] + c[0]), (0.5, 0.0), slots=2
        )
        return carry[0] ** 2

    def plain(w):
        x, total = 0.5, 0.0
        while total < 3.0:
            x, total = jnp.sin(x * w) + 1, total + x
        return x**2

    for order in (jax.grad, lambda f: jax.jacfwd(jax.grad(f))):
        np.testing.assert_allclose(
            jax.jit(order(loss))(0.7), jax.jacfwd(plain)(0.7) if order is jax.grad else second(plain)
        )


def second(function):
    """The second derivative of a function that Python runs, by a difference of derivatives."""
    e = 1e-6
    return (jax.jacfwd(function)(0.7 + e) - jax.jacfwd(function)(0.7 - e)) / (2 * e)


def test_the_program_with_one_slot_does_not_know_the_number_of_steps():
    def size(steps):
        def last(k):
            return remat.scan(lambda s, _: (jnp.sin(s * k), None), 0.5, length=steps, slots=1)[0]

        return len(jax.jit(jax.grad(last)).lower(1.0).as_text())

    assert size(100_000) <= 1.1 * size(100)


@pytest.mark.parametrize("wrap", [jax.checkpoint, remat.drop])
def test_a_budget_counts_what_a_step_that_is_a_checkpoint_computes_again(wrap):
    def block(p, s):
        for _ in range(3):
            s = s + jnp.tanh(jnp.sin(s @ p) @ p.T)
        return s

    def loss(p, s, memory):
        return jnp.sum(remat.scan(lambda s, _: (wrap(block)(p, s), None), s, length=20, memory=memory)[0])

    args = jax.ShapeDtypeStruct((16, 1024), float), jax.ShapeDtypeStruct((8, 16), float)
    with pytest.raises(InfeasibleError) as refused:
        temporaries(jax.grad(lambda p, s: loss(p, s, "16 KiB")), *args)
    taken = temporaries(jax.grad(lambda p, s: loss(p, s, refused.value.minimum)), *args) - 16 * 1024 * 8
    assert taken <= refused.value.minimum


@pytest.mark.parametrize("memory", [200_000, pytest.param(300_000, marks=pytest.mark.full)])
def test_a_budget_counts_residuals_that_all_steps_share(memory):
    def loss(p, s):
        def step(s, _):
            return jnp.linalg.solve(p + 4.0 * jnp.eye(64, dtype=p.dtype), s.T).T + 0.1, None

        return jnp.sum(remat.scan(step, s, length=300, memory=memory)[0])

    args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((16, 64), jnp.float32)
    assert temporaries(jax.grad(loss), *args) - 64 * 64 * 4 <= memory  # a gradient is not counted


def test_multiples_and_broadcasts_of_a_residual_are_not_stored_beside_it():
    def step(carry, x):
        squares = (carry**2).sum(1) + 1.0  # its rule keeps 2·carry
        weight = jnp.broadcast_to((3.0 * jnp.exp(-squares))[:, None], (40, 30))
        return 0.5 * carry * weight + x * carry, jnp.sum(carry * weight, 0) - carry.sum(0) ** 2

    def loss(carry, xs, scan, **budget):
        carry, ys = scan(step, carry, xs, **budget)
        return jnp.sum(carry**2) + jnp.sum(jnp.sin(ys))

    args = 0.1 * jnp.arange(1200.0).reshape(40, 30) / 1200, 0.1 * jnp.arange(12.0)

    def flat(consts, carry, x):
        after, y = step(*carry, *x)
        return [after], [y]

    vjp = StepVJP(StepJaxpr.of(flat, [args[0].aval, args[1][0].aval], 0, 1), Activity((), (True,), (True,), (True,)))
    assert [aval.shape for aval in vjp.per_step_avals].count((40, 30)) == 1  # the carry alone
    for slots in (3, 12):
        found = jax.jit(jax.value_and_grad(lambda *args, k=slots: loss(*args, remat.scan, slots=k), (0, 1)))(*args)
        want = jax.jit(jax.value_and_grad(lambda *args: loss(*args, jax.lax.scan), (0, 1)))(*args)
        for ours, plain in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-13)


@pytest.mark.parametrize("kind", ["scan", "while_loop"])
def test_loops_that_differ_in_the_budget_of_an_inner_loop_run_by_plans_of_their_own(kind):
    def last(h, slots):
        def inner(h, _):
            if kind == "while_loop":
                first, body = (0, h), lambda carry: (carry[0] + 1, jnp.sin(carry[1]))
                return remat.while_loop(lambda carry: carry[0] < 64, body, first, slots=slots)[1], None
            return remat.scan(lambda h, _: (jnp.sin(h), None), h, length=64, slots=slots)[0], None

        return jnp.sum(remat.scan(inner, h, length=3, slots=2)[0])

    def residual_bytes(slots):
        return sum(leaf.nbytes for leaf in jax.tree.leaves(jax.vjp(lambda h: last(h, slots), h)[1]))

    h = jnp.linspace(0.1, 0.9, 16)
    few, many = residual_bytes(1), residual_bytes(60)
    assert many > few + 40 * h.nbytes
    assert residual_bytes(1) == few
    want = jax.grad(lambda h: jnp.sum(jax.lax.fori_loop(0, 192, lambda _, h: jnp.sin(h), h)))(h)
    for slots in (60, 1):
        np.testing.assert_allclose(jax.jit(jax.grad(lambda h, slots=slots: last(h, slots)))(h), want, rtol=1e-12)
