"""A loop of unknown length as a function of flat arrays, and its derivative.

The arguments are the most steps, what the condition and the body close over, and the first carry; the result is the
last carry. The derivative keeps states as if any step could be the last, and then recomputes the others.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from remat.errors import StepError
from remat.frameworks.jax.avals import Flags, aval_of, behind_barrier, select, zeros_like_aval
from remat.frameworks.jax.batch_axes import in_axes_of, vmap_along
from remat.frameworks.jax.binomial_tables import binomial_table, online_positions
from remat.frameworks.jax.chunked_steps import ChunkedSteps, Grads
from remat.frameworks.jax.differentiable import Arrays, DifferentiableFunction, Linearization
from remat.frameworks.jax.primitives import call
from remat.frameworks.jax.residuals import Activity, StepVJP
from remat.frameworks.jax.reverse_sweep import CheckpointStack, reverse_sweep
from remat.frameworks.jax.step_jaxpr import Step
from remat.frameworks.jax.step_transforms import broadcast_batch, jvp_step, vmap_step

__all__ = ["WhileFunction"]

SlotsFor = Callable[[StepVJP], int]


class WhileFunction(DifferentiableFunction):
    """Steps as long as a condition holds; it is a step without outputs but its answer, and keeps the carry."""

    def __init__(self, cond: Step, body: Step, slots: SlotsFor) -> None:
        self.cond, self.body, self.slots = cond, body, slots
        self.key = None if cond.key is None or body.key is None else (cond, body)

    def apart(self, args: Arrays) -> tuple[Any, Arrays, Arrays, Arrays]:
        """The most steps, the constants of the condition, those of the body, and the carry."""
        a, b = 1 + self.cond.consts, 1 + self.cond.consts + self.body.consts
        return args[0], args[1:a], args[a:b], args[b:]

    def goes_on(self, args: Arrays) -> Callable[[Any, Arrays], Any]:
        """Whether another step follows after so many, by the carry."""
        most, consts, _, _ = self.apart(args)

        def goes_on(done: Any, carry: Arrays) -> Any:
            return jnp.asarray(self.cond(consts, carry, ())[1][0], bool) & (done < most)

        return goes_on

    def run(self, *args: Any) -> Arrays:
        """The plain loop."""
        _, _, consts, carry = self.apart(args)
        holds = self.goes_on(args)

        def step(held: Any) -> Any:
            return held[0] + 1, self.body(consts, held[1], ())[0]

        first = jnp.int32(0), list(carry)
        return list(lax.while_loop(lambda held: holds(*held), step, first)[1])

    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Arrays]":
        """The derivative, with as many slots as fit."""
        _, _, consts, carry = self.apart(active_inputs)
        through, _ = self.body.flows(tuple(consts), tuple(carry), ())
        step_vjp = StepVJP(self.body, Activity(tuple(consts), (), through, ()))
        slots = self.slots(step_vjp)
        places, levels = online_positions(slots)
        return WhileLinearization(self, step_vjp, active_inputs, slots), (places, levels, binomial_table(None, slots))

    def batched(self, axis: Any, flags: Flags, args: Arrays) -> tuple[DifferentiableFunction, Arrays, list[int | None]]:
        """One loop for a batch, which goes on as long as any of them does; those that ended stay as they are."""
        _, *parts = self.apart(flags)
        cond_flags, body_flags, had = map(tuple, parts)
        most, cond_consts, body_consts, init = self.apart(args)
        body, carry, _ = vmap_step(self.body, axis, body_flags, had, ())
        cond, _, (varies,) = vmap_step(self.cond, axis, cond_flags, carry, ())
        if not varies:
            init = broadcast_batch(init, had, carry, axis.size)
            return WhileFunction(cond, body, self.slots), [most, *cond_consts, *body_consts, *init], in_axes_of(carry)
        carry = (True,) * len(carry)
        init = broadcast_batch(init, had, carry, axis.size)
        safe, body_consts = _safe_inputs(self, axis, cond_flags, body_flags, [most, *cond_consts, *body_consts, *init])
        consts = [*cond_consts, *safe, *body_consts]
        both = _masked_step(self, axis, cond_flags, body_flags, [most, *cond_consts, *body_consts, *init])
        return WhileFunction(*both, self.slots), [most, *cond_consts, *consts, *init], in_axes_of(carry)


def _active_mask(loop: WhileFunction, axis: Any, cond_flags: Flags, consts: Arrays, carry: Arrays) -> Any:
    """Which members of a batch go on; an answer has no derivative."""
    one = vmap_along(
        lambda consts, carry: loop.cond(consts, carry, ())[1][0], axis, (in_axes_of(cond_flags), [0] * len(carry))
    )
    return one(*lax.stop_gradient((list(consts), list(carry)))).astype(bool)


def _safe_inputs(
    loop: WhileFunction, axis: Any, cond_flags: Flags, body_flags: Flags, args: Arrays
) -> tuple[Arrays, Arrays]:
    """Carries that a step may be given once a member has ended, and the constants of the body for them.

    A member that began is given its first carry again, from which a step was run in any case. One that did not begin is
    given all that is another's: from its own, a step might be inf or nan, or not end.
    """
    _, cond_consts, body_consts, init = loop.apart(args)
    begin = _active_mask(loop, axis, cond_flags, cond_consts, init)
    first = jnp.argmax(begin)

    def one(value: Any) -> Any:
        other = lax.dynamic_index_in_dim(value, first, keepdims=True)
        return _where(begin, [value], [jnp.broadcast_to(lax.stop_gradient(other), value.shape)])[0]

    consts = [one(const) if flag else const for const, flag in zip(body_consts, body_flags, strict=True)]
    return [lax.stop_gradient(one(value)) for value in init], consts


def _masked_step(
    loop: WhileFunction, axis: Any, cond_flags: Flags, body_flags: Flags, args: Arrays
) -> tuple[Step, Step]:
    """The condition and the body of a batch whose members end at different times."""
    _, cond_consts, body_consts, init = loop.apart(args)
    n, m = len(cond_consts), len(init)
    every = [0] * m

    def cond(consts: Arrays, carry: Arrays, _: Arrays) -> Any:
        return list(carry), [jnp.any(_active_mask(loop, axis, cond_flags, consts, carry))]

    def body(consts: Arrays, carry: Arrays, _: Arrays) -> Any:
        going = _active_mask(loop, axis, cond_flags, consts[:n], carry)
        given = _where(going, carry, consts[n : n + m])
        step = vmap_along(lambda consts, carry: loop.body(consts, carry, ())[0], axis, (in_axes_of(body_flags), every))
        return _where(going, step(list(consts[n + m :]), given), carry), []

    avals = [*map(aval_of, [*cond_consts, *init])]
    made = Step.of(cond, avals, n, m)
    avals = [*map(aval_of, [*cond_consts, *init, *body_consts, *init])]
    return made, Step.of(body, avals, n + m + len(body_consts), m)


def _where(flags: Any, some: Arrays, others: Arrays) -> list[Any]:
    """Some for those with a flag, others for the rest."""

    def one(a: Any, b: Any) -> Any:
        return jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - 1)), a, b)

    return [one(a, b) for a, b in zip(some, others, strict=True)]


class WhileLinearization(Linearization):
    """How the last carry changes with the first one and with what the body closes over."""

    extras = 3

    def __init__(self, loop: WhileFunction, step_vjp: StepVJP, active_inputs: Flags, slots: int) -> None:
        self.function = self.loop = loop
        self.step_vjp, self.activity, self.active_inputs, self.slots = step_vjp, step_vjp.activity, active_inputs, slots
        self.outs, self.active_outputs = len(self.activity.carry), self.activity.carry
        self.key = None if loop.key is None else (loop, active_inputs, slots)

    @property
    def run(self) -> DifferentiableFunction:
        """The loop of steps as they are run where they are differentiated."""
        if not self.loop.body.has_custom_rules:
            return self.loop
        return WhileFunction(self.loop.cond, self.step_vjp.run, self.loop.slots)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The last carry; and how many steps there were, which states are kept, and these."""
        _, _, consts, carry = self.loop.apart(args)
        places, levels = map(jnp.asarray, extra[:2])
        consts = behind_barrier(consts)
        holds = self.loop.goes_on(args)
        at = jnp.zeros(self.slots + 1, jnp.int32)
        stack = CheckpointStack.of(at, jnp.int32(1), carry, self.slots + 1)

        def step(held: Any) -> Any:
            done, _, carry = held
            carry = self.step_vjp.run(consts, carry, ())[0]
            return done + 1, holds(done + 1, carry), carry

        def stretch(held: Any) -> Any:
            """Steps up to the next place, where a state is kept if another step follows."""
            done, going, carry, stack, event = held
            done, going, carry = lax.while_loop(
                lambda held: held[1] & (held[0] < places[event]), step, (done, going, carry)
            )
            level = jnp.where(going, levels[event], self.slots)
            at = lax.dynamic_update_index_in_dim(stack.at, done, level, 0)
            depth = jnp.where(going, level + 1, stack.depth)
            return done, going, carry, CheckpointStack(at, depth, stack.put(level, carry).states), event + 1

        first = jnp.int32(0), holds(jnp.int32(0), carry), list(carry), stack, jnp.int32(0)
        done, _, carry, stack, _ = lax.while_loop(lambda held: held[1], stretch, first)
        return carry, [done, stack.at, stack.depth, *stack.states]

    def vjp(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of what moves, by the reverse sweep."""
        _, cond_consts, consts, carry = self.loop.apart(args)
        _, active_cond_consts, _, active_inputs = self.loop.apart(self.active_inputs)
        table, done, at, depth = saved[2:6]
        units = ChunkedSteps(self.step_vjp, behind_barrier(consts), ())
        parts, avals = iter(cotangents), select(self.activity.carry, map(aval_of, carry))
        bars = [next(parts) if flag else zeros_like_aval(aval) for flag, aval in zip(given, avals, strict=True)]

        def pull_one(carry: Arrays, i: Any, pulled: Grads) -> Grads:
            return units.vjp(pulled, units.record(carry, i, 1)[2], (), (), i, 1)

        pulled, _ = reverse_sweep(
            CheckpointStack(at, depth, list(saved[6:])),
            done,
            jnp.int32(self.slots),
            table,
            units,
            pull_one,
            units.zero_grads(bars),
        )
        answers = [
            zeros_like_aval(const) for const in select(active_cond_consts, cond_consts)
        ]  # an answer does not change a bit
        return [*answers, *pulled.consts, *select(select(self.activity.carry, active_inputs), pulled.carry)]

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the result, by a plain loop of steps with tangents."""
        loop, inputs = self._dual(args, tangents)
        return loop.run(*inputs)[len(self.activity.carry) :]

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The same by a loop that can be differentiated again."""
        loop, inputs = self._dual(args, tangents)
        return call(loop, inputs)[len(self.activity.carry) :]

    def _dual(self, args: Arrays, tangents: Arrays) -> tuple[WhileFunction, Arrays]:
        most, cond_consts, body_consts, carry = self.loop.apart(args)
        _, active_cond_consts, _, active_inputs = self.loop.apart(self.active_inputs)
        tangents = tangents[sum(active_cond_consts) :]
        body, consts, both, _ = jvp_step(
            self.loop.body, self.activity, tuple(active_inputs), body_consts, carry, (), tangents
        )

        def cond(consts: Arrays, held: Arrays, _: Arrays) -> Any:
            return list(held), self.loop.cond(consts, held[: len(carry)], ())[1]

        cond_step = Step.of(cond, [*map(aval_of, [*cond_consts, *both])], len(cond_consts), len(both))
        return WhileFunction(cond_step, body, self.loop.slots), [most, *cond_consts, *consts, *both]

    def differentiable_vjp(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """An error: what runs back over a loop of unknown length is none that could be run back over again."""
        raise StepError(
            "a while_loop cannot be differentiated twice in reverse mode, or more than once after it: its length is "
            "only known on the device. Forward over reverse works, as in jax.hessian; for more, "
            "give a known length to remat.scan"
        )
