"""The pullback of a loop written as loops, for derivatives beyond the first: it is differentiated like any loop.

The first loop gives all states as outputs, the second one runs back over them. So a derivative of a derivative holds
all states of a loop, and no tapes.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from remat.frameworks.jax.avals import Flags, aval_of, row_aval, select, zeros_like_aval
from remat.frameworks.jax.differentiable import Arrays
from remat.frameworks.jax.primitives import call
from remat.frameworks.jax.step_jaxpr import Step

if TYPE_CHECKING:
    from remat.frameworks.jax.scan_function import ScanLinearization

__all__ = ["adjoint"]


def adjoint(of: "ScanLinearization", given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
    """The cotangents of what moves in a loop."""
    from remat.frameworks.jax.scan_function import ScanFunction

    loop, activity, step = of.loop, of.activity, of.loop.step
    steps, consts, carry, xs = loop.apart(args)
    rows = loop.steps

    def showing(consts: Arrays, carry: Arrays, x: Arrays) -> Any:
        after, _ = of.step_vjp.run(consts, carry, x)
        return after, list(carry)

    first = Step.of(showing, step.avals, step.consts, step.carry)
    states = call(ScanFunction(first, rows, rows, loop.planner), [steps, *consts, *carry, *xs])[step.carry :]
    carry_bar, y_bars, given_ys = of._cotangents(given, cotangents)
    step_vjp = of.step_vjp_for(given_ys)
    n, m, k = len(consts), len(carry), len(xs)

    def back(consts: Arrays, bars: Arrays, row: Arrays) -> Any:
        """From the cotangents of a carry and the sums so far to those before a step."""
        state, x, y_bar = row[:m], row[m : m + k], row[m + k :]
        carry_bar, sums = bars[: sum(activity.carry)], bars[sum(activity.carry) :]
        tape = step_vjp.record(consts, state, x)[2]
        consts_bar, before, x_bar = step_vjp.vjp(tape, consts, x, carry_bar, y_bar)
        return [*before, *(a + b for a, b in zip(sums, consts_bar, strict=True))], x_bar

    sums = [zeros_like_aval(const) for const in select(activity.consts, consts)]
    rows_back = [jnp.flip(each, 0) for each in [*states, *xs, *y_bars]]
    bars = [*carry_bar, *sums]
    avals = [*map(aval_of, [*consts, *bars]), *map(row_aval, rows_back)]
    second = Step.of(back, avals, n, len(bars))
    found = call(ScanFunction(second, rows, rows, loop.planner), [steps, *consts, *bars, *rows_back])
    count = sum(activity.carry)
    before, sums, xs_bar = found[:count], found[count : len(bars)], found[len(bars) :]
    return of._wanted(sums, before, [jnp.flip(each, 0) for each in xs_bar])
