"""Statements of random JAX programs, segments among them; `jax_loop_statements.py` has the loops."""

from tests.random_programs.choices import Choices
from tests.random_programs.containers import packed, taken
from tests.random_programs.kinds import Kinds
from tests.random_programs.numpy_scope import Scope

KINDS: Kinds[Scope] = Kinds()
kind = KINDS.kind
CONTAINERS = {"tuple": 3, "dict": 2, "list": 1, "namedtuple": 1, "dataclass": 1, "nested": 1}


def write_body(s: Scope, c: Choices, most: int = 2) -> None:
    """One to `most` statements."""
    KINDS.write_body(s, c, s.banned | ({"nests"} if s.depth >= 2 else set()), most)


@kind(3)
def linear(s: Scope, c: Choices) -> None:
    s(f"h = jnp.tanh(h @ {s.weight(c)} + {s.weight(c.part('bias'), '4')})")


@kind(2)
def smooth(s: Scope, c: Choices) -> None:
    s(
        (
            "h = jnp.sin(h) + 0.1 * jnp.exp(-(h**2))",
            f"h = jnp.where(h > 0, h, 0.3 * h * {s.weight(c, '4')})",
            "h = h.at[1].set(h[0] * 2).at[2:].add(0.5)",
            "h = h + jax.lax.stop_gradient(jnp.sin(h))",
            "h = jnp.concatenate([h[2:], jnp.sin(h[:2])])",
            "h = h - 0.1 * jax.grad(lambda q: jnp.sum(jnp.tanh(q) ** 2))(h)",
            "h = jax.lax.cond(jnp.sum(h) > 0, jnp.sin, lambda h: h * 0.5, h)",
        )[c.number("smooth", 0, 6)]
    )


@kind(2)
def transformed(s: Scope, c: Choices) -> None:
    """A transformation of JAX inside of a step or a segment."""
    w = s.weight(c, "4")
    lines = {
        "jit": "h = jax.jit(lambda h: jnp.sin(h) * 0.9)(h)",
        "vmap": f"h = jax.vmap(lambda a, b: jnp.sin(a) * b)(h, {w})",
        "jvp": f"h = h + 0.1 * jax.jvp(jnp.sin, (h,), ({w} * h,))[1]",
        "hessian": "h = h - 0.1 * jnp.diagonal(jax.hessian(lambda q: jnp.sum(jnp.sin(q)))(h))",
        "checkpoint": f"h = jax.checkpoint(lambda h: jnp.sin(jnp.tanh(h * {w})))(h)",
        "custom_vjp": f"h = twice_the_slope(h, {w})",
        "custom_jvp": "h = gentle(h)",
        "scan": f"h = jax.lax.scan(lambda h, x: (jnp.sin(h + x), None), h, jnp.outer(jnp.arange(3.0), {w}))[0]",
        "fori": f"h = jax.lax.fori_loop(0, 3, lambda i, h: jnp.sin(h) + 0.1 * i * {w}, h)",
        "map": "h = jax.lax.map(lambda a: jnp.tanh(a) * 0.8, h)",
        "associative": "h = 0.3 * jax.lax.associative_scan(jnp.add, jnp.sin(h))",
        "switch": "h = jax.lax.switch(jnp.argmax(h) % 3, [jnp.sin, jnp.tanh, lambda h: 0.5 * h], h)",
        "cond of a weight": f"h = jax.lax.cond(h[0] > 0.2, lambda h: h * {w}, lambda h: jnp.cos(h), h)",
        "while without a gradient": (
            "h = h * (1 + 0.1 * jax.lax.while_loop(lambda i: i < 3.0, lambda i: i + 1.0, jax.lax.stop_gradient(h[0])))"
        ),
        "random": "h = h + 0.1 * jax.random.normal(jax.random.fold_in(jax.random.key(1), 7), (4,)) * jnp.sin(h)",
        "solve": "h = jnp.linalg.solve(jnp.eye(4) + 0.1 * jnp.outer(jnp.sin(h), h), h)",
        "sort": "h = jnp.sort(h) * 0.7 + 0.3 * h",
        "complex": "h = 0.5 * jnp.abs(jnp.fft.fft(h) + 1.0)",
    }
    s(lines[c.pick("transformed", dict.fromkeys(lines, 1.0))])


@kind(1.5)
def made(s: Scope, c: Choices) -> None:
    leaf = s.parameter("4")
    value = ("jnp.tanh({})", "jnp.sin({} * h)")[c.number("made of", 0, 1)].format(leaf)
    s(f"h = h + 0.5 * {s.captured(c, value)}")


@kind(4, "nests")
def segment(s: Scope, c: Choices) -> None:
    box = c.pick("arguments", {"bare": 3, **CONTAINERS})

    def fill(inner: Scope) -> None:
        inner(f"h = {taken(box, 'given', 2)[0]}")
        write_body(inner, c.part("body"))
        inner("return h, jnp.sum(h)")

    made = s.callable(c, "seg", "given", fill)
    way = c.pick(
        "way", {"remat.checkpoint({}, {})": 3, "remat.drop({})({})": 2, "remat.drop({}, policy='dots_saveable')({})": 1}
    )
    s(f"h, total = {way.format(made, packed(box, ['h', '2']))}", "h = h * (1 + 0.1 * total)")
