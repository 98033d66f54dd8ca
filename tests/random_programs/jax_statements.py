"""Statements of random JAX programs, segments and loops among them."""

from tests.random_programs.choices import Choices
from tests.random_programs.containers import packed, taken
from tests.random_programs.kinds import Kinds
from tests.random_programs.numpy_scope import Scope

KINDS: Kinds[Scope] = Kinds()
kind = KINDS.kind
CONTAINERS = {"tuple": 3, "dict": 2, "list": 1, "namedtuple": 1, "dataclass": 1, "nested": 1}
EXTRAS = {
    "h": ("", ""),
    "number": ("0", "e = e + 1"),
    "sum": ("jnp.zeros(())", "e = e + jnp.sum(h**2)"),
    "integer": ("jnp.zeros(3, int)", "e = e + (h[:3] > 0)"),
    "key": ("jax.random.key(3)", "e, k = jax.random.split(e)\nh = h + 0.1 * jax.random.normal(k, (4,))"),
    "constant": ("jnp.ones(4)", ""),
    "none": ("None", ""),
}
OUTPUTS = {"none": "None", "scalar": "jnp.sum(h**2)", "alias": "h", "container": "P2(jnp.sum(h), {'k': jnp.argmax(h)})"}


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


@kind(5, "nests")
def loop(s: Scope, c: Choices) -> None:
    length, extra = c.number("length", 1, 6), c.pick("carry", dict.fromkeys(EXTRAS, 1.0) | {"h": 3})
    inputs, outputs = c.pick("xs", {"none": 1, "traced": 2, "dict": 1}), c.pick("y", dict.fromkeys(OUTPUTS, 1.0))
    box = c.pick("container", {"bare": 3, **CONTAINERS} if extra == "h" else CONTAINERS)
    names = ["h"] if extra == "h" else ["h", "e"]

    def fill(inner: Scope) -> None:
        inner(*(f"{name} = {value}" for name, value in zip(names, taken(box, "carry", len(names)), strict=True)))
        inner({"none": "h = h * 1.0", "traced": "h = h + x", "dict": "h = h + x['x'] * x['i']"}[inputs])
        write_body(inner, c.part("body"))
        inner(*EXTRAS[extra][1].split("\n"))
        inner(f"return {packed(box, names)}, {OUTPUTS[outputs]}")

    step = s.callable(c, "step", "carry, x", fill, loop=True)
    leaf = s.parameter(f"{length}, 4")
    leaf = s.captured(c.part("xs"), leaf, "xs") if inputs != "none" else leaf
    xs = {"none": f"length={length}", "traced": leaf, "dict": f"{{'x': {leaf}, 'i': jnp.arange({length})}}"}[inputs]
    budget = c.pick("budget", {f"slots={c.number('slots', 1, length)}": 3, "memory='1 MiB'": 1, "memory='4 KiB'": 1})
    s(f"carry, ys = remat.scan({step}, {packed(box, names[:1] + [EXTRAS[extra][0]] * (extra != 'h'))}, {xs}, {budget})")
    s(f"h = {taken(box, 'carry', len(names))[0]}")
    if outputs != "none":
        s(f"h = h + 0.1 * jnp.mean(jnp.sin({'ys.a' if outputs == 'container' else 'ys'}))")
