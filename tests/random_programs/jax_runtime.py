"""What random programs on JAX import, and the way they are run."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy

from tests.random_programs.jax_evaluation import evaluate
from tests.random_programs.numpy_runtime import D1, D2, D3, D4, P1, P2, P3, P4, Box, the_plan
from tests.random_programs.observe import Seen, observed
from tests.random_programs.plain import Plain
from tests.random_programs.tree import mapped
from tests.random_programs.verdict import Program

__all__ = ["D1", "D2", "D3", "D4", "HALVES", "P1", "P2", "P3", "P4", "Box"]
__all__ += ["exchanged", "gentle", "slope_of", "solved", "the_plan", "twice_the_slope"]
HALVES = numpy.array([[1.0], [-0.5]])

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


def slope_of(function: Any) -> Any:
    """A function with a rule for its cotangents, which asks the function's own VJP."""

    def run(x: Any) -> Any:
        converted, closed_over = jax.closure_convert(function, x)  # rules may not close over what has tangents
        ruled = jax.custom_vjp(lambda *args: converted(*args))
        ruled.defvjp(lambda *args: jax.vjp(converted, *args), lambda vjp, bar: tuple(0.5 * each for each in vjp(bar)))
        return ruled(x, *closed_over)

    return run


def solved(matvec: Any, b: Any) -> Any:
    """The solution of a linear system that is known by its products alone."""

    def solve(matvec: Any, b: Any) -> Any:
        return jnp.linalg.solve(jax.jacfwd(matvec)(b), b)

    return jax.lax.custom_linear_solve(matvec, b, solve, transpose_solve=solve)


def exchanged(replace_loops: Any, slots: int, body: Any, steps: int) -> Any:
    """A function with loops of JAX's own, exchanged where it is traced."""

    def run(a: Any, b: Any = 1.0) -> Any:
        with replace_loops(slots=slots):
            a = jax.lax.fori_loop(0, steps, lambda i, c: body(i, c) * b, a)
            return jax.checkpoint(lambda a: jnp.sin(a) * b)(a)

    return run


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
        # Random programs end after four steps.
        return jax.lax.scan(step, carry, None, 5 if max_steps is None else max_steps)[0]

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
            if noise := getattr(remat, "noise", 0.0):
                parameters = {name: value * (1 + noise) for name, value in parameters.items()}
            drive = partial(functions["drive"], user)
            # Most of the time would be XLA's: one program in ten is compiled, and NumPy evaluates the others.
            run = drive if program.seed % 10 == 0 else partial(evaluate, drive)
            results = run(mapped(jnp.asarray, parameters))
            return [*observed("result", jax.tree.map(numpy.asarray, results)), *observed("given", parameters)]
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
