"""What random programs on JAX import, and the way they are run."""

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy

from tests.random_programs.numpy_runtime import D1, D2, D3, D4, P1, P2, P3, P4, Box, the_plan
from tests.random_programs.observe import Seen, observed
from tests.random_programs.plain import Plain
from tests.random_programs.tree import mapped
from tests.random_programs.verdict import Program

__all__ = ["D1", "D2", "D3", "D4", "P1", "P2", "P3", "P4", "Box", "gentle", "the_plan", "twice_the_slope"]

for kind in (D1, D2, D3, D4):
    fields = list("abcd"[: int(kind.__name__[1])])
    jax.tree_util.register_dataclass(kind, data_fields=fields, meta_fields=[])


@jax.custom_vjp
def twice_the_slope(x: Any, w: Any) -> Any:
    """A product whose derivative is not its own, so that one can see whether the rule is asked."""
    return jnp.sin(x) * w


twice_the_slope.defvjp(
    lambda x, w: (jnp.sin(x) * w, (x, w)),
    lambda kept, bar: (2.0 * bar * jnp.cos(kept[0]) * kept[1], bar * jnp.sin(kept[0])),
)


@jax.custom_jvp
def gentle(x: Any) -> Any:
    """A function with tangents of its own."""
    return jnp.tanh(x)


gentle.defjvp(lambda x, dx: (jnp.tanh(x[0]), 0.5 * dx[0] * jnp.cos(x[0])))


class JaxPlain(Plain):
    """JAX's own scan; a loop with a condition is one of all its steps, those after the end left out."""

    def scan(self, step: Any, init: Any, xs: Any = None, length: int | None = None, **options: Any) -> Any:
        return jax.lax.scan(step, init, xs, length, reverse=options.get("reverse", False))

    @staticmethod
    def while_loop(cond: Any, body: Any, init: Any, *, max_steps: int | None = None, **_: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            return jax.lax.cond(cond(carry), body, lambda carry: carry, carry), None

        after = jax.eval_shape(body, init)  # a Python number has the dtype that the body gives it
        carry = jax.tree.map(lambda leaf, aval: jax.lax.convert_element_type(leaf, aval.dtype), init, after)
        return jax.lax.scan(step, carry, None, max_steps)[0]

    @staticmethod
    def replace_loops(**_: Any) -> Any:
        return nullcontext()


plain = JaxPlain(jnp.stack)


def run(program: Program, remat: Any) -> list[Seen]:
    """The results of the program with `remat`, or with what takes its place."""
    jax.config.update("jax_disable_most_optimizations", True)  # XLA compiles quickly, where only the numbers matter
    try:
        with jax.enable_x64(True):
            functions = program.loaded(remat)
            user, parameters = functions["make"]()
            results = functions["drive"](user, mapped(jnp.asarray, parameters))
            return [*observed("result", jax.tree.map(numpy.asarray, results)), *observed("given", parameters)]
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
