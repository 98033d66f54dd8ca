"""What random programs on JAX import, and the way they are run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy

from tests.random_programs.numpy_runtime import D1, D2, D3, D4, P1, P2, P3, P4, Box, the_plan
from tests.random_programs.observe import Seen, observed
from tests.random_programs.plain import Plain
from tests.random_programs.tree import mapped
from tests.random_programs.verdict import Program

__all__ = ["D1", "D2", "D3", "D4", "P1", "P2", "P3", "P4", "Box", "the_plan"]

for kind in (D1, D2, D3, D4):
    fields = list("abcd"[: int(kind.__name__[1])])
    jax.tree_util.register_dataclass(kind, data_fields=fields, meta_fields=[])


def _stacked(rows: Any) -> Any:
    return jnp.stack([jnp.asarray(row) for row in rows])


plain = Plain(_stacked)


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
