"""Small loops of random JAX programs in odd places: inside of transformations, branches, solvers and named axes."""

from tests.random_programs.choices import Choices
from tests.random_programs.jax_statements import kind
from tests.random_programs.numpy_scope import Scope

LOOPS = {  # functions of a vector and of a weight; {n} and {slots} are numbers
    "scan": "lambda a, b=1.0: remat.scan(lambda c, _: (jnp.sin(c * {w} * b), None), a, length={n}, slots={slots})[0]",
    "outputs": (
        "lambda a, b=1.0: remat.scan(lambda c, x: (jnp.tanh(c + x * b), c * b), a, {w} * jnp.ones(({n}, 4)),"
        " slots={slots}, reverse=True)[1].sum(0)"
    ),
    "while": (
        "lambda a, b=1.0: remat.while_loop(lambda c: (c[0] < {n}) & (c[1][0] < 0.8),"
        " lambda c: (c[0] + 1, jnp.sin(c[1] * {w} * b) + 0.3), (0, a), max_steps={bound}, slots={slots})[1]"
    ),
    "exchanged": "exchanged(remat.replace_loops, {slots}, lambda i, c: jnp.sin(c * {w}) + 0.1 * i, {n})",
    "segment": "lambda a, b=1.0: remat.checkpoint(lambda a: jnp.sin(jnp.tanh(a * {w}) * b), a)",
}
PLACES = {
    "gradient": "h = h - 0.1 * jax.grad(lambda q: jnp.sum({f}(q) ** 2))(h)",
    "hessian": "h = h + 0.1 * jax.hessian(lambda q: jnp.sum({f}(q)))(h) @ h",
    "hvp": "h = h + 0.1 * jax.jvp(jax.grad(lambda q: jnp.sum({f}(q) ** 2)), (h,), (jnp.ones(4),))[1]",
    "jvp": "h = jax.jvp({f}, (h,), (0.3 * h,))[1]",
    "linearize": "h = jax.linearize({f}, h)[1](0.5 * h)",
    "vmap": "h = jax.vmap({f}, (None, 0))(h, jnp.array([0.5, 1.5])).sum(0)",
    "vmap of grad": "h = h + 0.1 * jax.vmap(jax.grad(lambda q: jnp.sum({f}(q, 0.7))))(jnp.stack([h, -h])).sum(0)",
    "jacobian": "h = h + 0.1 * jax.jacrev({f})(h)[1] + 0.1 * jax.jacfwd({f})(h)[2]",
    "cond": "h = jax.lax.cond(h[0] > 0, {f}, lambda a: 0.5 * a, h)",
    "vmapped cond": "h = jax.vmap(lambda a: jax.lax.cond(a[0] > 0, {f}, jnp.cos, a))(jnp.stack([h, -h])).sum(0)",
    "switch": "h = jax.lax.switch(jnp.argmax(h) % 2, [{f}, jnp.tanh], h)",
    "map": "h = jax.lax.map({f}, jnp.stack([h, 0.5 * h])).sum(0)",
    "scan": "h = jax.lax.scan(lambda a, x: ({f}(a) + x, None), h, jnp.ones((2, 4)) * 0.1)[0]",
    "checkpoint": "h = jax.checkpoint({f})(h)",
    "jit": "h = jax.jit({f})(h) + jax.jit({f})(0.5 * h)",
    "named axis": "h = jax.vmap(lambda a: {f}(a) - jax.lax.pmean(a, 'n'), axis_name='n')(jnp.stack([h, 2 * h])).sum(0)",
    "shared result": "h = jax.vmap(lambda a: {f}(jax.lax.psum(a, 'n')), axis_name='n', out_axes=None)(h * HALVES)",
    "custom rule": "h = slope_of({f})(h)",
    "solver": "h = solved(lambda v: v + 0.1 * {f}(h) * v, h)",
    "integer": "h = h * (1 + 0.1 * jax.lax.stop_gradient(jnp.round({f}(h)).astype(int).sum()))",
}


@kind(4)
def placed(s: Scope, c: Choices) -> None:
    w = s.weight(c, "4")
    n = c.number("length", 0, 3)
    bound = c.pick("bound", {str(n): 2, "None": 1})
    loop = LOOPS[c.pick("loop", dict.fromkeys(LOOPS, 1.0))].format(w=w, n=n, slots=c.number("slots", 1, 3), bound=bound)
    name = s.parts.fresh("f")
    s(f"{name} = {loop}", PLACES[c.pick("place", dict.fromkeys(PLACES, 1.0))].format(f=name))
