"""`while_loop` on JAX: exact gradients of loops that find their end on the device, under every transformation."""

import math
import re
from dataclasses import dataclass
from functools import partial

import equinox
import jax
import jax.numpy as jnp
import numpy
import pytest
from jax import lax

import remat
from remat.planners.dp.online_placement import reversal_advances
from tests.frameworks.jax_programs import positions_after, quick, x64  # noqa: F401

pytestmark = pytest.mark.usefixtures("quick")


def ours(slots, **asked):
    return partial(remat.while_loop, slots=slots, **asked)


def plain(most):
    """The same loop as a scan of `most` steps, those after the end left out."""

    def run(cond, body, init):
        def step(carry, _):
            return lax.cond(cond(carry), body, lambda carry: carry, carry), None

        return lax.scan(step, init, None, length=most)[0]

    return run


def assert_same(found, expected, tolerance=1e-12):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.result_type(a) == jnp.result_type(b)
        a, b = (jnp.asarray(each).astype(float) for each in (a, b))
        assert a.shape == b.shape
        scale = max(1.0, float(jnp.max(jnp.abs(b), initial=0.0)))
        numpy.testing.assert_allclose(a, b, rtol=0.0, atol=tolerance * scale)


def compare(of, slots=3, most=15, **asked):
    """What `of(loop)` gives is the same with our loop as with a plain one."""
    found, expected = jax.jit(lambda: (of(ours(slots, **asked)), of(plain(most))))()
    assert_same(found, expected)


W = numpy.array([[0.9, -1.1], [1.2, 0.4]])
B = numpy.array([0.3, -0.2])
X = numpy.array([0.3, 0.7])
XS = numpy.stack([X, 2 * X, X - 1.0, X[::-1]])
ENDS = numpy.array([0, 5, 13, 1])


def recurrence(loop, params, x, end):
    """A number that depends on a closed-over matrix, on the first carry, and on how long the loop is."""
    W, b = params

    def body(carry):
        i, h, c = carry
        return i + 1, jnp.tanh(W @ h + b * c), 0.9 * c + 0.2 * h

    _, h, c = loop(lambda carry: carry[0] < end, body, (0, jnp.asarray(x), 2.0 * jnp.asarray(x)))
    return jnp.sum(jnp.sin(h)) + jnp.sum(c**2)


def gradients(loop, **keywords):
    return jax.grad(lambda params, x, end: recurrence(loop, params, x, end), (0, 1), **keywords)


# Lengths, slots and bounds.


@pytest.mark.parametrize("slots", [1, 2, 12, 400])
def test_gradients_are_those_of_the_plain_loop_at_every_length(slots):
    found, expected = (jax.jit(gradients(loop)) for loop in (ours(slots), plain(310)))
    for end in [*range(24), 37, 64, 100, 155, 310]:
        assert_same(found((W, B), X, end), expected((W, B), X, end))
    assert found._cache_size() == 1


@pytest.mark.parametrize("most", [None, 0, 7])
def test_the_bound_ends_the_loop_if_the_condition_does_not(most):
    steps = 20 if most is None else min(20, most)
    expected = jax.jit(gradients(plain(steps)))((W, B), X, 20)
    assert_same(gradients(ours(3, max_steps=most))((W, B), X, 20), expected)  # without jit


def test_a_condition_that_always_holds_is_ended_by_the_bound():
    of = jax.grad(lambda x: remat.while_loop(lambda x: True, jnp.sin, x, max_steps=9, slots=2))
    assert_same(of(0.3), jax.grad(lambda x: lax.fori_loop(0, 9, lambda _, x: jnp.sin(x), x))(0.3))
    assert remat.while_loop(lambda x: False, jnp.sin, jnp.float64(0.3), slots=1) == 0.3


@pytest.mark.parametrize("memory", ["2 KiB", "32 KiB"])
def test_a_budget_in_bytes_gives_the_same_gradients(memory):
    loops = partial(remat.while_loop, memory=memory), plain(30)
    assert_same(*jax.jit(lambda: [gradients(loop)((W, B), X, 30) for loop in loops])())


# Evaluations, program size and memory.


def evaluations(loop, steps):
    """How often the body is run by a gradient."""
    seen = []

    def body(carry):
        jax.debug.callback(lambda: seen.append(None))
        return carry[0] + 1, jnp.sin(carry[1])

    jax.block_until_ready(jax.grad(lambda x: loop(lambda carry: carry[0] < steps, body, (0, x))[1])(0.3))
    jax.effects_barrier()
    return len(seen)


@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (2, 3), (7, 1), (20, 3), (333, 7), (1000, 10), (1000, 31)])
def test_steps_are_run_as_often_as_the_states_held_allow(steps, slots):
    reverse = reversal_advances(positions_after(steps, slots), steps, slots)
    assert evaluations(ours(slots), steps) == steps + reverse + steps


@pytest.mark.parametrize("slots", [10, 31])
def test_there_are_no_more_evaluations_than_equinox_makes(slots):
    theirs = partial(equinox.internal.while_loop, kind="checkpointed", checkpoints=slots)
    ours = 2000 + reversal_advances(positions_after(1000, slots), 1000, slots)  # as was counted above
    assert ours <= evaluations(theirs, 1000)


def test_the_program_and_its_memory_do_not_know_the_number_of_steps():
    def compiled(most):
        loop = ours(8, max_steps=most)
        x = jax.ShapeDtypeStruct((2,), float)
        return jax.jit(jax.grad(lambda x, end: recurrence(loop, (W, B), x, end))).lower(x, 7)

    compiled(1)  # JAX names its own helpers anew the first time
    texts = {re.sub(r"dense<\d+>|@\w+", "", compiled(most).as_text()) for most in (10, 100_000, None)}
    assert len(texts) == 1

    def big(most):
        def run(h):
            return jnp.sum(remat.while_loop(lambda h: h[0, 0] < 1e3, lambda h: h * 1.1, h, slots=8, max_steps=most))

        h = jax.ShapeDtypeStruct((128, 64), float)
        return jax.jit(jax.grad(run)).lower(h).compile().memory_analysis().temp_size_in_bytes

    sizes = [big(most) for most in (10, 100_000, None)]
    assert len(set(sizes)) == 1
    assert 8 <= sizes[0] / (128 * 64 * 8) <= 8 + 8


# Batches.


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


# Nested loops.


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
        ("while in while", grad_of_vmap),
        ("scan in while", vmap_of_grad),
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


# Other modes, and second order.


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


# What the condition and the body close over.


def test_a_condition_that_closes_over_what_is_differentiated():
    def of(loop, a, x):
        return jnp.sum(loop(lambda s: s[0] < 10.0 * a, lambda s: (s[0] * 1.3 + a, jnp.sin(s[1] * a)), (a, x))[1])

    def limit(loop, a, x):
        return loop(lambda s: s < a, lambda s: 1.3 * s + 0.1, x)

    def all_ways(loop):
        one, other = partial(of, loop), partial(limit, loop)
        pushed = jax.jvp(one, (0.9, 0.4), (1.0, 2.0))
        each = jax.vmap(jax.grad(other, (0, 1)), (0, None))(X, 0.4)
        summed = jax.grad(lambda a: jnp.sum(jax.vmap(one, (0, None))(a, 0.4)))(X)
        return jax.grad(one, (0, 1))(0.9, 0.4), pushed, each, summed

    compare(all_ways, most=40)


def test_bodies_that_differ_only_in_a_derivative_of_their_own_are_told_apart():
    def steps(factor):
        by_jvp = jax.custom_jvp(jnp.sin)
        by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), factor * tangents[0]))
        by_vjp = jax.custom_vjp(jnp.sin)
        by_vjp.defvjp(lambda x: (by_vjp(x), None), lambda _, bar: (factor * bar,))
        return by_jvp, by_vjp

    for factor in (1.0, 2.0, 3.0):
        for step in steps(factor):
            of = lambda x, step=step: remat.while_loop(  # noqa: E731
                lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1])), (0, x), slots=2
            )[1]
            assert jax.grad(of)(0.3) == factor**3


# What a carry may be.


@jax.tree_util.register_dataclass
@dataclass
class Registered:
    h: jax.Array
    count: jax.Array
    nothing: None = None


class Module(equinox.Module):
    h: jax.Array
    name: str = equinox.field(static=True)


def carries():
    def noisy(c):
        key, own = jax.random.split(c["key"])
        noise = jax.random.normal(own) + jax.random.normal(c["old"])
        return {"key": key, "old": c["old"] + jnp.uint32(1), "h": jnp.sin(c["h"] + noise), "i": c["i"] + 1}

    yield (
        "keys, new and old",
        lambda x: {"key": jax.random.key(3), "old": jax.random.PRNGKey(3), "h": x, "i": 0},
        noisy,
        lambda c: c["i"] < 5,
    )
    yield (
        "dataclass and module",
        lambda x: (Registered(x, jnp.int8(1)), Module(x, "name")),
        lambda c: (
            Registered(jnp.sin(c[0].h) * c[0].count, c[0].count + jnp.int8(1)),
            equinox.tree_at(lambda m: m.h, c[1], jnp.cos(c[1].h)),
        ),
        lambda c: c[0].count < 5,
    )
    yield (
        "bools, integers, None, empty",
        lambda x: (x, True, jnp.uint8(1), None, jnp.zeros((0, 3))),
        lambda c: (jnp.where(c[1], c[0] * 1.5, jnp.sin(c[0])), jnp.logical_not(c[1]), c[2] * jnp.uint8(2), None, -c[4]),
        lambda c: c[2] < 64,
    )
    yield (
        "weak types",
        lambda x: (0, 1, 0.0, x),
        lambda c: (c[0] + 1, c[1] * c[3][0], c[2] + c[1], c[3]),
        lambda c: c[0] < 5,
    )
    yield (
        "complex",
        lambda x: (x * (1 + 0.5j), x),
        lambda c: (c[0] * (1.1 + 0.3j) + c[1], c[1]),
        lambda c: jnp.abs(c[0][0]) < 3.0,
    )


def parts(tree):
    """Numbers that all floats of a carry become, complex ones as two."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return sum(jnp.sum(jnp.sin(leaf.real) + jnp.cos(leaf.imag) * 0.5) for leaf in leaves)


@pytest.mark.parametrize(("start", "body", "cond"), [pytest.param(*rest, id=name) for name, *rest in carries()])
def test_carries_of_every_kind(start, body, cond):
    def unrolled(x):
        carry = start(x)
        while cond(carry):
            carry = body(carry)
        return parts(carry)

    def loop(x):
        return parts(remat.while_loop(cond, body, start(x), slots=2))

    xs = abs(XS[:2])
    expected = jnp.stack([jax.grad(unrolled)(x) for x in xs])

    @jax.jit
    def found(xs):
        together = jax.grad(lambda xs: jnp.sum(jax.vmap(loop)(xs)))(xs)
        return jax.grad(loop)(xs[0]), jax.vmap(jax.grad(loop))(xs), together

    assert_same(found(xs), (expected[0], expected, expected))


def test_bfloat16():
    def of(loop):
        body = lambda x: x * jnp.bfloat16(1.25) + jnp.sin(x)  # noqa: E731
        return jax.grad(lambda x: jnp.sum(loop(lambda x: x[0] < 8.0, body, x)))(jnp.asarray(X, jnp.bfloat16))

    compare(of, slots=2)


def test_integers_alone_and_results_of_which_a_part_is_used():
    count = lambda x, loop: loop(lambda i: i < 7, lambda i: i + jnp.where(x > 0.0, 2, 1), 0)  # noqa: E731
    assert jax.grad(lambda x: x * count(x, ours(2)))(2.0) == 8.0
    assert jax.grad(lambda x: 1.0 * count(x, ours(2)))(2.0) == 0.0

    def of(loop, k):
        body = lambda s: (s[0] + 1.0, jnp.sin(s[1]), s[2] * 1.1 + s[1])  # noqa: E731
        return jax.grad(lambda x: loop(lambda s: s[0] < 7.0, body, (0.0, x, x))[k])(0.7)

    for k in range(3):
        compare(partial(of, k=k), slots=2)


def test_a_key_that_is_closed_over():
    def of(loop, x, key):
        def body(s):
            return s[0] + 1, jnp.sin(s[1] + jax.random.normal(jax.random.fold_in(key, s[0])))

        return loop(lambda s: s[0] < 5, body, (0, x))[1]

    keys = jax.random.split(jax.random.key(1), 3)
    compare(lambda loop: jax.vmap(jax.grad(partial(of, loop)), (None, 0))(0.3, keys))


# Mistakes.


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda c: {"h": c["h"]}, r"carry\['i'\] is gone"),
        (lambda c: {"h": c["h"][None], "i": c["i"]}, r"carry\['h'\] was float64\[2\] and became float64\[1, 2\]"),
        (lambda c: {"h": c["h"].astype("float32"), "i": c["i"]}, r"carry\['h'\] was float64.* became float32"),
    ],
)
def test_a_body_that_changes_its_carry_is_told_which_leaf(body, said):
    with pytest.raises(remat.StepError, match=said):
        remat.while_loop(lambda c: c["i"] < 3, body, {"h": jnp.ones(2), "i": 0}, slots=2)


def test_other_mistakes():
    loop = partial(remat.while_loop, lambda x: x < 3.0, lambda x: x + 1.0, jnp.float64(0.0))
    with pytest.raises(remat.InfeasibleError, match="slot"):
        jax.grad(lambda x: remat.while_loop(lambda x: x < 3.0, lambda x: x + 1.0, x, slots=0))(0.0)
    for most in (-1, 2.5):
        with pytest.raises(remat.ProblemError, match="max_steps"):
            loop(slots=1, max_steps=most)
    with pytest.raises(remat.ProblemError, match="budget"):
        loop()
    assert loop(slots=1, max_steps=2**40) == 3.0
    for cond in (lambda x: x < jnp.ones(2), lambda x: None, lambda x: (True, True)):
        with pytest.raises(remat.StepError, match="one truth value"):
            remat.while_loop(cond, lambda x: x, jnp.float64(0.0), slots=1)


# Fits of ordinary differential equations.


def field(params, t, y):
    """A small network."""
    w1, w2 = params
    return w2 @ jnp.tanh(w1 @ y + t)


def heun(params, t, y, dt):
    """A step, and an estimate of its error."""
    k1 = field(params, t, y)
    k2 = field(params, t + dt, y + dt * k1)
    return y + dt * (k1 + k2) / 2.0, dt * (k2 - k1) / 2.0


def solve(loop, params, y, end=2.0):
    """Steps with a controlled error: one that is too large is tried again with less."""

    def body(state):
        t, y, dt = state
        dt = jnp.minimum(dt, end - t)
        new, wrong = heun(params, t, y, dt)
        size = jnp.sqrt(jnp.mean((wrong / 1e-2) ** 2))
        good = size <= 1.0
        factor = jnp.clip(0.9 * lax.rsqrt(jnp.maximum(size, 1e-10)), 0.2, 5.0)
        return jnp.where(good, t + dt, t), jnp.where(good, new, y), dt * factor

    return loop(lambda state: state[0] < end, body, (0.0, y, 0.5))[1]


FIELD = numpy.random.default_rng(0).normal(size=(2, 3, 3)) * 0.8


def test_an_adaptive_solver_of_a_neural_ode():
    ys = numpy.random.default_rng(1).normal(size=(3, 3))

    def fit(loop, params, ys):
        return jnp.sum(jax.vmap(lambda y: solve(loop, tuple(params), y))(ys) ** 2)

    compare(lambda loop: jax.jit(jax.value_and_grad(partial(fit, loop), (0, 1)))(FIELD, ys), slots=4, most=40)


def test_gradients_are_those_of_diffrax():
    diffrax = pytest.importorskip("diffrax")
    term = diffrax.ODETerm(lambda t, y, params: field(params, t, y))
    solver, y = diffrax.Heun(), jnp.asarray([*X.tolist(), 0.1])
    controller = diffrax.PIDController(rtol=1e-3, atol=1e-4)

    def theirs(params, y):
        adjoint = diffrax.RecursiveCheckpointAdjoint()
        found = diffrax.diffeqsolve(
            term, solver, 0.0, 2.0, 0.1, y, tuple(params), stepsize_controller=controller, adjoint=adjoint
        )
        return jnp.sum(found.ys**2)

    def mine(params, y):
        params = tuple(params)
        t0, t1, state = 0.0, 2.0, solver.init(term, 0.0, 0.1, y, params)
        first, control = controller.init(term, t0, t1, y, 0.1, params, solver.func, solver.error_order(term))

        def body(carry):
            t, after, y, state, control, jump = carry
            new, wrong, _, new_state, _ = solver.step(term, t, after, y, params, state, jump)
            keep, t_new, after_new, jump, control, _ = controller.adapt_step_size(
                t, after, y, new, params, wrong, solver.error_order(term), control
            )
            t_new, after_new = jnp.minimum(t_new, t1), jnp.minimum(after_new, t1)
            after_new = jnp.where(after_new > t1 - 1e-10, t1, after_new)
            y, state = jax.tree.map(partial(jnp.where, keep), (new, new_state), (y, state))
            return t_new, after_new, y, state, control, jump

        carry = jnp.float64(t0), jnp.asarray(first, float), y, state, control, jnp.bool_(False)
        return jnp.sum(remat.while_loop(lambda carry: carry[0] < t1, body, carry, slots=5)[2] ** 2)

    found, expected = (jax.jit(jax.value_and_grad(of, (0, 1)))(jnp.asarray(FIELD), y) for of in (mine, theirs))
    assert math.isclose(found[0], expected[0], rel_tol=1e-9)
    assert_same(found, expected, 1e-9)
