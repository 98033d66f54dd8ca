"""A loop in sections, inside jit: the state after each section is returned, and each section is recomputed as a whole.

In: a traced step and the lengths of the sections. Out: the last carry, and the states between sections. This is how a
plan of save points is compiled: sections of equal length are one `lax.scan` whose body is a `jax.checkpoint`, so that
the program contains two copies of it however many sections there are. Only the states between sections and the
residuals of one section are live. The last section is recomputed as well; otherwise its residuals would be additional
buffers beside those of the others.
"""

from collections.abc import Sequence
from itertools import groupby

from remat.frameworks.jax.avals import (
    Array,
    jax_checkpoint,
    lax_scan,
)
from remat.frameworks.jax.loops.step_jaxpr import TracedStep
from remat.loops.stacked_values import SeparateRows

__all__ = ["run_sections"]


def run_sections(traced: TracedStep, lengths: Sequence[int]) -> tuple[list[Array], list[SeparateRows]]:
    """The carry after all sections, and for each of its leaves the values after each section but the last."""
    carry, rows = list(traced.carry), [list[Array]() for _ in traced.carry]
    for length, group in groupby(lengths):
        carry, states = _run_equal(traced, carry, length, count := len(list(group)))
        for leaf_rows, leaf_states in zip(rows, states, strict=True):
            leaf_rows.extend(leaf_states[i] for i in range(count))  # one by one, since a slice would be a copy
    return carry, [SeparateRows(leaf_rows[:-1]) for leaf_rows in rows]


def _run_equal(traced: TracedStep, carry: list[Array], length: int, count: int) -> tuple[list[Array], list[Array]]:
    """The carry after `count` sections of this length, and the states after each of them, stacked."""
    section = jax_checkpoint(lambda carry: _run(traced, carry, length), prevent_cse=False)
    after, states = lax_scan(lambda carry, _: (section(carry),) * 2, carry, None, count)
    return list(after), list(states)


def _run(traced: TracedStep, carry: list[Array], steps: int) -> list[Array]:
    after: list[Array] = lax_scan(lambda h, _: (traced.step(traced.consts, h, ())[0], None), carry, None, steps)[0]
    return after
