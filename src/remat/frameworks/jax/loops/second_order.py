"""The VJP of a loop as two loops, for higher derivatives: they are differentiated like any loop.

The first loop returns the state before each step, the second one runs back over the states:

    forward:   c[0] ─► c[1] ─► … ─► c[n]          all states are its outputs
    back:      c̄[i], sums ◄─ vjp of step i at c[i] ◄─ c̄[i+1], sums

So a second derivative holds all states of the loop, which are the inputs of the second loop, but no residuals. What the
reverse sweeps of the two loops keep in addition is planned as for any loop.
"""

from collections.abc import Callable

import jax.numpy as jnp

from remat.frameworks.jax.avals import Array, Flags, aval_of, row_aval, select, zeros_like_aval
from remat.frameworks.jax.loops.chunked_steps import Grads
from remat.frameworks.jax.loops.residuals import RecomputedStep, StepVJP
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.transforms.differentiable import Arrays
from remat.pytree import PyTree

__all__ = ["Scan", "adjoint_loop", "states_loop"]

# Runs a differentiable loop of a step, given (step, consts, first carry, inputs) with a row for each step.
Scan = Callable[[StepJaxpr, Arrays, Arrays, Arrays], list[Array]]


def states_loop(scan: Scan, step_vjp: StepVJP, kept: Flags, consts: Arrays, carry: Arrays, xs: Arrays) -> list[Array]:
    """The kept leaves of the carry before each step, as rows."""
    step = step_vjp.step

    def put_out_carry(consts: Arrays, carry: Arrays, x: Arrays) -> PyTree:
        after, _ = step_vjp.forward(consts, carry, x)
        return after, select(kept, carry)

    states_step = StepJaxpr.of(put_out_carry, step.avals, step.n_consts, step.n_carry)
    return scan(states_step, consts, carry, xs)[step.n_carry :]


def adjoint_loop(
    scan: Scan, step_vjp: RecomputedStep, consts: Arrays, states: Arrays, xs: Arrays, carry_bar: Arrays, y_bars: Arrays
) -> Grads:
    """The cotangents of a loop's active inputs, from the state before each step."""
    n, m, k = len(consts), len(states), len(xs)
    n_active = len(carry_bar)

    def step_back(consts: Arrays, bars: Arrays, row: Arrays) -> PyTree:
        state, x, y_bar = row[:m], row[m : m + k], row[m + k :]
        carry_bar, sums = bars[:n_active], bars[n_active:]
        residuals = step_vjp.record(consts, state, x)[2]
        consts_bar, before, x_bar = step_vjp.vjp(residuals, consts, x, carry_bar, y_bar)
        return [*before, *(total + bar for total, bar in zip(sums, consts_bar, strict=True))], x_bar

    sums = [zeros_like_aval(const) for const in select(step_vjp.activity.consts, consts)]
    rows = [jnp.flip(each, 0) for each in [*states, *xs, *y_bars]]  # a scan that runs back is a scan over flipped rows
    bars = [*carry_bar, *sums]
    avals = [*map(aval_of, [*consts, *bars]), *map(row_aval, rows)]
    results = scan(StepJaxpr.of(step_back, avals, n, len(bars)), consts, bars, rows)
    xs_bar = [jnp.flip(each, 0) for each in results[len(bars) :]]
    return Grads(results[:n_active], results[n_active : len(bars)], xs_bar)
