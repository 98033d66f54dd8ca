"""A whole random program on JAX."""

from remat.errors import InfeasibleError, RematError
from tests.random_programs import jax_loop_statements, jax_placed_loops  # noqa: F401 (importing registers statements)
from tests.random_programs.choices import Choices
from tests.random_programs.jax_runtime import run
from tests.random_programs.jax_statements import KINDS, write_body
from tests.random_programs.numpy_scope import Scope
from tests.random_programs.source import Parts, Source
from tests.random_programs.verdict import Program

HEAD = '''"""Random program {seed} on JAX."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import checkify

from tests.random_programs.jax_runtime import *

'''

TWO = "jax.tree.map(lambda a: jnp.stack([a, 0.5 * a]), p)"
SLOPES = "sum(jnp.sum(g**2) for g in jax.grad(loss)(p).values())"
ONE = "jax.tree.map(jnp.ones_like, p)"
DRIVERS = {
    "return jax.jit(jax.value_and_grad(loss))(p)": 4,
    "return jax.value_and_grad(loss)(p)": 0.5,
    f"return jax.jit(jax.vmap(jax.grad(loss)))({TWO})": 1,
    f"return jax.jit(jax.grad(lambda p: jnp.mean(jax.vmap(loss)({TWO}))))(p)": 1,
    f"return jax.jit(jax.grad(lambda p: {SLOPES}))(p)": 1,
    f"return jax.jit(lambda p: jax.jvp(jax.grad(loss), (p,), ({ONE},)))(p)": 1,
    f"return jax.jit(lambda p: jax.jvp(loss, (p,), ({ONE},)))(p)": 0.7,
    f"return jax.jit(jax.grad(lambda p: jax.jvp(loss, (p,), ({ONE},))[1]))(p)": 0.5,
    "return jax.jit(lambda p: [*jax.linearize(loss, p)[:1], jax.vjp(loss, p)[1](2.0)])(p)": 0.5,
    "return jax.jit(jax.jacrev(lambda p: forward(p, u)))(p)": 0.5,
    "return jax.jit(jax.grad(jax.checkpoint(loss)))(p)": 0.5,
    "return jax.jit(loss)(p)": 0.3,
    "return jax.jit(jax.hessian(lambda h: loss({**p, 'start': h})))(p['start'])": 0.5,
    "return jax.jit(jax.jacfwd(jax.jacrev(lambda h: loss({**p, 'start': h}))))(p['start'])": 0.3,
    f"return jax.jit(lambda p: jax.jvp(lambda p: jax.jvp(loss, (p,), ({ONE},))[1], (p,), ({ONE},)))(p)": 0.3,
    f"return jax.jit(jax.vmap(jax.vmap(jax.grad(loss))))(jax.tree.map(lambda a: jnp.stack([a, a + 0.1]), {TWO}))": 0.3,
    f"return jax.jit(jax.vmap(lambda p: jax.jvp(jax.grad(loss), (p,), ({ONE},))[1]))({TWO})": 0.5,
    "return jax.jit(lambda p: checkify.checkify(jax.grad(loss), checkify.float_checks)(p)[1])(p)": 0.3,
    "return jax.jit(lambda p: jax.linearize(loss, p)[1](p))(p)": 0.3,
}


def write_program(seed: int, without: frozenset[str] = frozenset()) -> Program:
    """The program of a seed, without some of its features."""
    c = Choices(seed, without)
    parts, body, text = Parts(), Source(), Source()
    scope = Scope(parts, body)
    write_body(scope, c.part("before"), 1)
    KINDS[c.pick("nest", {"segment": 2, "loop": 4, "while_loop": 2})].write(scope, c.part("nest"))
    write_body(scope, c.part("after"), 1)
    text(HEAD.format(seed=seed), *parts.classes.lines, "")
    with text.block("def make():"):
        text("rng = numpy.random.default_rng(1)", "u = SimpleNamespace()")
        text("p = {'start': rng.normal(size=4)}", *parts.make.lines, "return u, p")
    text("", "")
    with text.block("def forward(p, u):"):
        text("h = 1.0 * p['start']", *body.lines, "return h")
    text("", "")
    with text.block("def drive(u, p):"):
        text("loss = lambda p: jnp.sum(forward(p, u) ** 2)", c.pick("driver", DRIVERS))
    return Program(
        seed, "jax", text.text() + "\n", dict(c.features), 1e-4 if "carry=float32" in c.features else 1e-10, _why, run
    )


def _why(error: RematError) -> str:
    """Why a program deserves this error."""
    if isinstance(error, InfeasibleError):
        return "the budget is too small"
    if "cannot be differentiated twice in reverse mode" in str(error):
        return "a while loop has no reverse over reverse"
    return ""
