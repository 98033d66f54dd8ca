"""Loops of random JAX programs: scans, while loops, and loops of JAX that are exchanged."""

from tests.random_programs.choices import Choices
from tests.random_programs.containers import packed, taken
from tests.random_programs.jax_statements import CONTAINERS, kind, write_body
from tests.random_programs.numpy_scope import Scope

EXTRAS = {
    "h": ("", ""),
    "number": ("0", "e = e + 1"),
    "weak float": ("0.0", "e = e + h[0]"),
    "sum": ("jnp.zeros(())", "e = e + jnp.sum(h**2)"),
    "integer": ("jnp.zeros(3, int)", "e = e + (h[:3] > 0)"),
    "bool": ("jnp.array(True)", "e = e ^ (h[0] > 0)"),
    "key": ("jax.random.key(3)", "e, k = jax.random.split(e)\nh = h + 0.1 * jax.random.normal(k, (4,))"),
    "old key": ("jax.random.PRNGKey(3)", "e, k = jax.random.split(e)\nh = h * jax.random.bernoulli(k, 0.8, (4,))"),
    "rbg key": ("jax.random.key(3, impl='rbg')", "e, k = jax.random.split(e)\nh = h + jax.random.normal(k, (4,))"),
    "float32": ("jnp.zeros(4, 'float32')", "e = e + h.astype('float32')\nh = h + 0.1 * e"),
    "half": ("jnp.zeros((), 'bfloat16')", "e = (e + 1).astype('bfloat16')\nh = h + 0.1 * e"),
    "constant": ("jnp.ones(4)", "h = h * e"),
    "buffer": ("jnp.zeros((5, 4))", "e = e.at[jnp.argmax(h)].set(h)"),
    "read buffer": ("jnp.zeros((5, 4))", "h = h + 0.1 * e[1]\ne = e.at[jnp.argmax(h)].add(h)"),
    "empty": ("jnp.zeros((0, 4))", "e = -e"),
    "complex": ("jnp.zeros(2, complex)", "e = e * (0.5 + 0.5j) + h[:2]\nh = h.at[0].add(0.1 * e[0].imag)"),
    "none": ("None", ""),
}
OUTPUTS = {"none": "None", "scalar": "jnp.sum(h**2)", "alias": "h", "container": "P2(jnp.sum(h), {'k': jnp.argmax(h)})"}
INPUTS = {"none": "h = h * 1.0", "traced": "h = h + x", "dict": "h = h + x['x'] * x['i']"}


@kind(5, "nests")
def loop(s: Scope, c: Choices) -> None:
    length, extra = c.number("length", 0, 4), c.pick("carry", dict.fromkeys(EXTRAS, 1.0) | {"h": 3})
    inputs, outputs = c.pick("xs", {"none": 1, "traced": 2, "dict": 1}), c.pick("y", dict.fromkeys(OUTPUTS, 1.0))
    box = c.pick("container", {"bare": 3, **CONTAINERS} if extra == "h" else CONTAINERS)
    names = ["h"] if extra == "h" else ["h", "e"]

    def fill(inner: Scope) -> None:
        inner(*(f"{name} = {value}" for name, value in zip(names, taken(box, "carry", len(names)), strict=True)))
        inner(INPUTS[inputs])
        write_body(inner, c.part("body"))
        inner(*EXTRAS[extra][1].split("\n"))
        inner(f"return {packed(box, names)}, {OUTPUTS[outputs]}")

    step = s.callable(c, "step", "carry, x", fill, loop=True)
    leaf = s.parameter(f"{length}, 4")
    leaf = s.captured(c.part("xs"), leaf, "xs") if inputs != "none" else leaf
    xs = {
        "none": f"None, length={length}",
        "traced": leaf,
        "dict": f"{{'x': {leaf}, 'i': jnp.arange({length})}}",
    }[inputs]
    budget = c.pick(
        "budget", {f"slots={c.number('slots', 1, max(1, length))}": 3, "memory='1 MiB'": 1, "memory='6 KiB'": 0.5}
    )
    options = c.pick("option", {"": 4, ", reverse=True": 1, ", unroll=2": 0.5})
    init = packed(box, names[:1] + [EXTRAS[extra][0]] * (extra != "h"))
    if c.chance("exchanged", 0.25):
        with s.out.block(f"with remat.replace_loops({budget}):"):
            s(f"carry, ys = jax.lax.scan({step}, {init}, {xs}{options})")
    else:
        s(f"carry, ys = remat.scan({step}, {init}, {xs}, {budget}{options})")
    s(f"h = {taken(box, 'carry', len(names))[0]}")
    if extra in ("sum", "buffer", "read buffer", "weak float"):
        s(f"h = h + 0.1 * jnp.sum({taken(box, 'carry', 2)[1]})")
    if outputs != "none":
        s(f"h = h + 0.1 * jnp.sum(jnp.sin({'ys.a' if outputs == 'container' else 'ys'}))")


@kind(3, "nests")
def while_loop(s: Scope, c: Choices) -> None:
    """A loop that ends after some steps, or earlier, if its state grows: members of a batch end at different times."""
    length, extra = c.number("length", 0, 4), c.pick("carry", dict.fromkeys(EXTRAS, 1.0) | {"h": 3})
    box = c.pick("container", CONTAINERS)
    names = ["h", "i"] if extra == "h" else ["h", "i", "e"]
    ends = c.pick("ends", {"count": 2, "state": 2, "weight": 1})
    slots, bound = c.number("slots", 1, 5), c.pick("bound", {str(length): 3, "None": 1})
    values = taken(box, "carry", len(names))

    def fill(inner: Scope) -> None:
        inner(*(f"{name} = {value}" for name, value in zip(names, values, strict=True)))
        write_body(inner, c.part("body"))
        inner(*EXTRAS[extra][1].split("\n"))
        inner(f"return {packed(box, ['h', 'i + 1', *names[2:]])}")

    body = s.callable(c, "body", "carry", fill, loop=True)
    rest = {"state": f" & (jnp.sum({values[0]} ** 2) < 3.0)", "weight": f" & ({values[0]}[0] < 0.5)"}.get(ends, "")
    s(f"cond = lambda carry: ({values[1]} < {length}){rest}")
    init = packed(box, ["h", "0", *([EXTRAS[extra][0]] * (extra != "h"))])
    budget = c.pick("budget", {f"slots={slots}": 3, "memory='1 MiB'": 1})
    s(f"carry = remat.while_loop(cond, {body}, {init}, max_steps={bound}, {budget})")
    s(f"h = {values[0]}")
    if extra in ("sum", "buffer", "read buffer", "weak float"):
        s(f"h = h + 0.1 * jnp.sum({values[2]})")
