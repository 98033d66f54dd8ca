"""`drop(fn, memory=...)`: a segment that keeps those of its values which save most time, within a budget."""

import jax
import jax.numpy as jnp
import pytest

import remat
from remat.frameworks.jax.segments.kept_values import kept_values

pytest.importorskip("networkx")


def block(weights, x):
    h = x - x.mean(-1, keepdims=True)
    q, k, v = (h @ weights[name] for name in "qkv")
    x = x + jax.nn.softmax(q @ k.T, -1) @ v
    return x + jax.nn.gelu(x @ weights["wide"]) @ weights["narrow"]


SHAPES = {"q": (8, 8), "k": (8, 8), "v": (8, 8), "wide": (8, 32), "narrow": (32, 8)}


@pytest.fixture
def inputs():
    keys = jax.random.split(jax.random.key(0), 6)
    weights = {
        name: jax.random.normal(key, shape) / 3 for key, (name, shape) in zip(keys, SHAPES.items(), strict=False)
    }
    return weights, jax.random.normal(keys[-1], (16, 8))


def residual_bytes(fn, *args):
    """Bytes that the pullback of a function holds beside its arguments and results."""

    def run(*args):
        out, pullback = jax.vjp(fn, *args)
        return out, jax.tree.leaves(pullback)

    jaxpr = jax.make_jaxpr(run)(*args).jaxpr
    held = {id(var): var for var in jaxpr.outvars[1:] if hasattr(var.aval, "shape") and not hasattr(var, "val")}
    there = {id(var) for var in (*jaxpr.invars, *jaxpr.constvars, jaxpr.outvars[0])}
    return sum(var.aval.size * var.aval.dtype.itemsize for key, var in held.items() if key not in there)


@pytest.mark.parametrize("states", [0, 4, 40])
def test_residuals_are_inside_and_gradients_those_of_the_plain_function(inputs, states):
    memory = states * inputs[1].nbytes
    ours = remat.drop(block, memory=memory)
    expected = jax.grad(lambda *args: jnp.sum(block(*args) ** 2), (0, 1))(*inputs)
    found = jax.grad(lambda *args: jnp.sum(ours(*args) ** 2), (0, 1))(*inputs)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(a, b, rtol=1e-12, atol=1e-12)
    assert residual_bytes(ours, *inputs) <= memory
    assert residual_bytes(block, *inputs) > 15 * inputs[1].nbytes


def test_more_memory_keeps_more_and_what_is_dear_first(inputs):
    flat, tree = jax.tree.flatten(inputs)
    program = jax.make_jaxpr(lambda *leaves: [block(*jax.tree.unflatten(tree, leaves))])(*flat)
    sizes = [sum(aval.size * 8 for aval in kept_values(n * inputs[1].nbytes, program)) for n in range(0, 24, 4)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 0 < sizes[1] < sizes[-1]


def test_programs_with_loops_branches_and_rules_of_their_own(inputs):
    @jax.custom_vjp
    def doubled(x):
        return 2.0 * x

    doubled.defvjp(lambda x: (2.0 * x, None), lambda _, ct: (2.0 * ct,))

    @jax.jit
    def inner(x, s):
        return jnp.tanh(x) * s + doubled(x), 3.0

    def program(x):
        x, three = inner(x, jnp.float32(2.0))
        x, ys = jax.lax.scan(lambda c, _: (jnp.sin(c), c.sum()), x, length=3)
        x = jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)
        return jnp.sum(x * three) + ys.sum() + jnp.sum(jax.nn.relu(x) + jnp.where(x > 0, x, 0.0))

    x = inputs[1]
    expected, hessian = jax.grad(program)(x), jax.jvp(jax.grad(program), (x,), (x,))[1]
    for states in (3, 100):
        ours = remat.drop(program, memory=states * x.nbytes)
        assert jnp.allclose(jax.jit(jax.grad(ours))(x), expected, rtol=1e-12)
        assert jnp.allclose(jax.jvp(jax.grad(ours), (x,), (x,))[1], hessian, rtol=1e-10)
        assert jnp.allclose(jax.vmap(jax.grad(ours))(x[None])[0], expected, rtol=1e-12)


def test_mistakes():
    with pytest.raises(remat.ProblemError, match="one of them"):
        remat.drop(block, memory=10, policy="dots_saveable")
    with pytest.raises(remat.ProblemError, match="memory"):
        remat.drop(block, memory="much")


def loop(weights, x):
    def step(carry, _):
        return jnp.tanh(carry @ weights["q"]), carry.sum()

    carry, sums = jax.lax.scan(step, x, None, length=3)
    return carry * sums.mean() + jnp.sin(x)


@pytest.mark.full
@pytest.mark.parametrize("fn", [block, loop])
@pytest.mark.parametrize("states", [0, 4, 40])
def test_transformations(inputs, fn, states):
    ours = remat.drop(fn, memory=states * inputs[1].nbytes)

    def losses(fn):
        def loss(weights, x):
            return jnp.sum(fn(weights, x) ** 2)

        weights, x = inputs
        yield jax.jit(jax.grad(loss, (0, 1)))(weights, x)
        yield jax.vmap(jax.grad(loss), (None, 0))(weights, jnp.stack([x, 2 * x]))
        yield jax.grad(lambda y: jnp.sum(jax.grad(loss, 1)(weights, y) ** 2))(x)
        yield jax.jvp(jax.grad(loss, 1), (weights, x), (weights, x))[1]
        many = jax.lax.scan(lambda carry, _: (jnp.tanh(fn(weights, carry)), None), x, None, length=2)[0]
        yield many

    for found, expected in zip(losses(ours), losses(fn), strict=True):
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert jnp.allclose(a, b, rtol=1e-10, atol=1e-10)
