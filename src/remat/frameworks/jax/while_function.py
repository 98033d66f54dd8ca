"""A loop of unknown length as a function of flat arrays (`WhileFunction`), and its linearization.

The arguments are the most steps, what the condition and the body close over, and the first carry; the result is the
last carry. The linearization keeps states as if any step could be the last (`binomial_tables.online_positions`), and
recomputes the others in the reverse sweep. Mapped over a batch, it runs as long as any member does.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from remat.errors import StepError
from remat.frameworks.jax.avals import (
    Array,
    Aval,
    BatchAxis,
    Flags,
    aval_of,
    behind_barrier,
    in_axes_of,
    inputs_needed,
    lax_while_loop,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.binomial_tables import binomial_table, online_positions
from remat.frameworks.jax.chunked_steps import ChunkedSteps, Grads
from remat.frameworks.jax.differentiable import Arrays, DifferentiableFunction, ForwardModeOnly, Linearization
from remat.frameworks.jax.primitives import call
from remat.frameworks.jax.residuals import Activity, StepVJP
from remat.frameworks.jax.reverse_sweep import CheckpointStack, reverse_sweep
from remat.frameworks.jax.step_jaxpr import StepJaxpr
from remat.frameworks.jax.step_transforms import broadcast_batch, jvp_step, vmap_step
from remat.pytree import PyTree

__all__ = ["WhileFunction"]

T = TypeVar("T")
SlotsFor = Callable[[StepVJP], int]


class WhileFunction(DifferentiableFunction):
    """A body, run while a condition holds; the condition is a step that keeps its carry and puts out the answer."""

    def __init__(self, cond: StepJaxpr, body: StepJaxpr, slots: SlotsFor) -> None:
        self.cond, self.body, self.slots = cond, body, slots
        self.key = None if cond.key is None or body.key is None else (cond, body)

    def split_args(self, args: Sequence[T]) -> tuple[T, Sequence[T], Sequence[T], Sequence[T]]:
        """The most steps, the constants of the condition, those of the body, and the carry."""
        a, b = 1 + self.cond.n_consts, 1 + self.cond.n_consts + self.body.n_consts
        return args[0], args[1:a], args[a:b], args[b:]

    def continues(self, args: Arrays) -> Callable[[Array, Arrays], Array]:
        """Whether another step follows, as a function of the steps done and of the carry."""
        most, consts, _, _ = self.split_args(args)

        def continues(done: Array, carry: Arrays) -> Array:
            return jnp.asarray(self.cond(consts, carry, ())[1][0], bool) & (done < most)

        return continues

    def run(self, *args: Array) -> Arrays:
        """The plain loop."""
        _, _, consts, carry = self.split_args(args)
        continues = self.continues(args)

        def step(loop_carry: PyTree) -> PyTree:
            done, carry = loop_carry
            return done + 1, self.body(consts, carry, ())[0]

        first = jnp.int32(0), list(carry)
        return list(lax_while_loop(lambda loop_carry: continues(*loop_carry), step, first)[1])

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """All but the leaves of the carry that neither these results nor the condition are computed from."""
        asked = inputs_needed(self.cond.program, [False] * self.cond.n_carry + [True])[self.cond.n_consts :]
        carry = self.body.inputs_of(tuple(a or b for a, b in zip(outputs, asked, strict=True)), ())
        return (True, *([True] * (self.cond.n_consts + self.body.n_consts)), *carry)

    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Sequence[ArrayLike]]":
        """The linearization, with as many slots as fit, and its tables."""
        _, _, consts, carry = self.split_args(active_inputs)
        active_carry, _ = self.body.active(tuple(consts), tuple(carry), ())
        activity = Activity(tuple(consts), (), active_carry, ())
        try:
            step_vjp = StepVJP(self.body, activity)
        except StepError as error:
            return _ForwardModeWhile(self, activity, active_inputs, error), ()
        slots = self.slots(step_vjp)
        # The tables depend on the slots alone, so one program serves any number of steps.
        tables = (*online_positions(slots), binomial_table(None, slots))
        return WhileLinearization(self, step_vjp, active_inputs, slots), tables

    def batched(
        self, axis: BatchAxis, flags: Flags, args: Arrays
    ) -> tuple[DifferentiableFunction, Arrays, list[int | None]]:
        """One loop for a batch, which runs as long as any member does; members that ended keep their carry."""
        cond_flags, body_flags, init_flags = map(tuple, self.split_args(flags)[1:])
        most, cond_consts, body_consts, init = self.split_args(args)
        body, carry_flags, _ = vmap_step(self.body, axis, body_flags, init_flags, ())
        cond, _, (answers_differ,) = vmap_step(self.cond, axis, cond_flags, carry_flags, ())
        if not answers_differ:  # all members end at once
            init = broadcast_batch(init, init_flags, carry_flags, axis.size)
            loop = WhileFunction(cond, body, self.slots)
            return loop, [most, *cond_consts, *body_consts, *init], in_axes_of(carry_flags)
        # A member that ended keeps its carry while others go on, so that each leaf of the carry is a member's own.
        carry_flags = (True,) * len(carry_flags)
        init = broadcast_batch(init, init_flags, carry_flags, axis.size)
        safe, body_consts = _safe_inputs(self, axis, cond_flags, body_flags, [most, *cond_consts, *body_consts, *init])
        consts = [*cond_consts, *safe, *body_consts]
        cond, body = _masked_step(self, axis, cond_flags, body_flags, [most, *cond_consts, *body_consts, *init])
        loop = _MaskedLoop(cond, body, self, axis, (False, *cond_flags, *body_flags, *carry_flags))
        return loop, [most, *cond_consts, *consts, *init], in_axes_of(carry_flags)


class _MaskedLoop(WhileFunction):
    """A loop of a batch whose members end at different times, made to be differentiated: see `_safe_inputs`.

    Where it is not, it is vmap of the member's plain loop, which makes fewer copies of what the body writes into.
    """

    def __init__(self, cond: StepJaxpr, body: StepJaxpr, member: WhileFunction, axis: BatchAxis, flags: Flags) -> None:
        super().__init__(cond, body, member.slots)
        self.member, self.axis, self.flags = member, axis, flags
        self.key = None if self.key is None or member.key is None else (*self.key, member, axis, flags)

    def run(self, *args: Array) -> Arrays:
        """The plain loops of all members."""
        most, cond_consts, consts, carry = self.split_args(args)
        body_consts = consts[len(cond_consts) + len(carry) :]
        run = self.axis.vmap(lambda *args: list(self.member.run(*args)), tuple(in_axes_of(self.flags)))
        return list(run(most, *cond_consts, *body_consts, *carry))


def _active_mask(loop: WhileFunction, axis: BatchAxis, cond_flags: Flags, consts: Arrays, carry: Arrays) -> Array:
    """Which members of a batch continue; the answer of a condition has no derivative."""
    all_members = axis.vmap(
        lambda consts, carry: loop.cond(consts, carry, ())[1][0], (in_axes_of(cond_flags), [0] * len(carry))
    )
    answers: Array = all_members(*lax.stop_gradient((list(consts), list(carry))))
    return answers.astype(bool)


def _safe_inputs(
    loop: WhileFunction, axis: BatchAxis, cond_flags: Flags, body_flags: Flags, args: Arrays
) -> tuple[Arrays, Arrays]:
    """Carries, and constants of the body, from which a step can be run for members that ended.

    All members run the body, and the results of those that ended are not used. But 0 · inf is nan, so a step of theirs
    that overflows would reach their gradients through the zero cotangent: inputs are replaced too, and not only results
    (the double-where trick). A member that began gets its first carry again, from which a step was run in any case. One
    that did not begin gets all inputs of another member: with its own a step might be inf or nan, or not end.
    """
    _, cond_consts, body_consts, init = loop.split_args(args)
    if axis.size == 0:  # nobody begins, and there is no other member
        return init, body_consts
    begins = _active_mask(loop, axis, cond_flags, cond_consts, init)
    first = jnp.argmax(begins)  # if no member begins, the body is not run at all

    def replaced(value: Array) -> Array:
        other = lax.dynamic_index_in_dim(value, first, keepdims=True)
        return _where(begins, [value], [jnp.broadcast_to(lax.stop_gradient(other), value.shape)])[0]

    consts = [replaced(const) if flag else const for const, flag in zip(body_consts, body_flags, strict=True)]
    return [lax.stop_gradient(replaced(value)) for value in init], consts


def _masked_step(
    loop: WhileFunction, axis: BatchAxis, cond_flags: Flags, body_flags: Flags, args: Arrays
) -> tuple[StepJaxpr, StepJaxpr]:
    """The condition and the body of a batch whose members end at different times.

    The constants of the body are those of the condition, safe carries, and its own.
    """
    _, cond_consts, body_consts, init = loop.split_args(args)
    n, m = len(cond_consts), len(init)

    def cond(consts: Arrays, carry: Arrays, _: Arrays) -> tuple[Arrays, Arrays]:
        return list(carry), [jnp.any(_active_mask(loop, axis, cond_flags, consts, carry))]

    def body(consts: Arrays, carry: Arrays, _: Arrays) -> tuple[Arrays, Arrays]:
        mask = _active_mask(loop, axis, cond_flags, consts[:n], carry)
        step_inputs = _where(mask, carry, consts[n : n + m])  # see `_safe_inputs`
        step = axis.vmap(lambda consts, carry: loop.body(consts, carry, ())[0], (in_axes_of(body_flags), [0] * m))
        return _where(mask, step(list(consts[n + m :]), step_inputs), carry), []

    cond_step = StepJaxpr.of(cond, [*map(aval_of, [*cond_consts, *init])], n, m)
    avals = [*map(aval_of, [*cond_consts, *init, *body_consts, *init])]
    return cond_step, StepJaxpr.of(body, avals, n + m + len(body_consts), m)


def _where(mask: Array, values: Arrays, others: Arrays) -> list[Array]:
    """The values for members with a flag, the others for the rest."""

    def one(a: Array, b: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    return [one(a, b) for a, b in zip(values, others, strict=True)]


class WhileLinearization(Linearization):
    """A loop of unknown length, linearized with respect to its first carry and what its body closes over."""

    extra_inputs = 3

    def __init__(self, loop: WhileFunction, step_vjp: StepVJP, active_inputs: Flags, slots: int) -> None:
        self.function = self.loop = loop
        self.step_vjp, self.activity, self.active_inputs, self.slots = step_vjp, step_vjp.activity, active_inputs, slots
        self.n_outputs, self.active_outputs = len(self.activity.carry), self.activity.carry
        self.key = None if loop.key is None else (loop, active_inputs, slots)

    @property
    def needed_inputs(self) -> Flags:
        """All but the leaves of the carry that neither a residual nor the condition is computed from."""
        return self.loop.inputs_of((), self.step_vjp.needed)

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The loop of steps as they run where they are differentiated."""
        if not self.loop.body.has_custom_rules:
            return self.loop
        return WhileFunction(self.loop.cond, self.step_vjp.forward, self.loop.slots)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The last carry; and as residuals the number of steps, and the stack of kept states."""
        _, _, consts, carry = self.loop.split_args(args)
        positions, levels = map(jnp.asarray, extra[:2])
        consts = behind_barrier(consts)
        continues = self.loop.continues(args)
        at = jnp.zeros(self.slots + 1, jnp.int32)  # level 0 is the first carry, before step 0
        kept = self.step_vjp.needed
        stack = CheckpointStack.of(at, jnp.int32(1), select(kept, carry), self.slots + 1)

        def step(loop_carry: PyTree) -> PyTree:
            done, _, carry = loop_carry
            carry = self.step_vjp.forward(consts, carry, ())[0]
            # The answer is part of the carry: both loops need it, and a condition may be as long as a step.
            return done + 1, continues(done + 1, carry), carry

        def advance_and_keep(loop_carry: PyTree) -> PyTree:
            """Advance to the next position of the table, where the state is kept if another step follows."""
            done, going, carry, stack, entry = loop_carry
            done, going, carry = lax_while_loop(
                lambda inner: inner[1] & (inner[0] < positions[entry]), step, (done, going, carry)
            )
            # After the end nothing is kept: the state is written into the row that lies above all slots.
            level = jnp.where(going, levels[entry], self.slots)
            at = lax.dynamic_update_index_in_dim(stack.at, done, level, 0)
            depth = jnp.where(going, level + 1, stack.depth)
            return (
                done,
                going,
                carry,
                CheckpointStack(at, depth, stack.put(level, select(kept, carry)).states),
                entry + 1,
            )

        first = jnp.int32(0), continues(jnp.int32(0), carry), list(carry), stack, jnp.int32(0)
        done, _, carry, stack, _ = lax_while_loop(lambda loop_carry: loop_carry[1], advance_and_keep, first)
        return carry, [done, stack.at, stack.depth, *stack.states]

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs, by the reverse sweep."""
        _, cond_consts, consts, carry = self.loop.split_args(args)
        _, active_cond_consts, _, active_init = self.loop.split_args(self.active_inputs)
        table, done, at, depth = residuals[2:6]
        chunks = ChunkedSteps(self.step_vjp.recomputed(self.step_vjp.needed), behind_barrier(consts), ())
        rest, avals = iter(cotangents), select(self.activity.carry, map(aval_of, carry))
        carry_bar = [next(rest) if flag else zeros_like_aval(aval) for flag, aval in zip(nonzero, avals, strict=True)]

        def pull_one(carry: Arrays, i: Array, grads: Grads) -> Grads:
            return chunks.vjp(grads, chunks.record(carry, i, 1)[2], (), (), i, 1)

        stack, slots = CheckpointStack(at, depth, list(residuals[6:])), jnp.int32(self.slots)
        grads, _ = reverse_sweep(stack, done, slots, table, chunks, pull_one, chunks.zero_grads(carry_bar))
        # An answer is piecewise constant: what only the condition reads has a cotangent of zero.
        cond_bar = [zeros_like_aval(const) for const in select(active_cond_consts, cond_consts)]
        return [*cond_bar, *grads.consts, *select(select(self.activity.carry, active_init), grads.carry)]

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the result, by a plain loop of steps with tangents."""
        loop, loop_args = self._jvp_loop(args, tangents)
        return loop.run(*loop_args)[len(self.activity.carry) :]

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The same by a loop that can be differentiated again."""
        loop, loop_args = self._jvp_loop(args, tangents)
        return call(loop, loop_args)[len(self.activity.carry) :]

    def _jvp_loop(self, args: Arrays, tangents: Arrays) -> tuple[WhileFunction, Arrays]:
        """The loop of steps with tangents, and its arguments."""
        most, cond_consts, body_consts, carry = self.loop.split_args(args)
        _, active_cond_consts, _, active_init = self.loop.split_args(self.active_inputs)
        tangents = tangents[sum(active_cond_consts) :]  # those of the condition's constants change nothing
        body, consts, dual_carry, _ = jvp_step(
            self.loop.body, self.activity, tuple(active_init), body_consts, carry, (), tangents
        )

        def cond(consts: Arrays, dual_carry: Arrays, _: Arrays) -> tuple[Arrays, Arrays]:
            return list(dual_carry), self.loop.cond(consts, dual_carry[: len(carry)], ())[1]

        avals = [*map(aval_of, [*cond_consts, *dual_carry])]
        cond_step = StepJaxpr.of(cond, avals, len(cond_consts), len(dual_carry))
        return WhileFunction(cond_step, body, self.loop.slots), [most, *cond_consts, *consts, *dual_carry]

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """A StepError: the number of rows that all states of the loop would take is not known when it is traced."""
        raise StepError(
            "a while_loop cannot be differentiated twice in reverse mode, or more than once after it: its length is "
            "only known on the device. Forward over reverse works, as in jax.hessian; for more, "
            "give a known length to remat.scan"
        )


class _ForwardModeWhile(ForwardModeOnly, WhileLinearization):
    """The linearization of a loop whose body has tangents, but no VJP: in reverse mode it is refused."""

    def __init__(self, loop: WhileFunction, activity: Activity, active_inputs: Flags, error: StepError) -> None:
        self.function = self.loop = loop
        self.activity, self.active_inputs, self.error = activity, active_inputs, error
        self.n_outputs, self.active_outputs = len(activity.carry), activity.carry
        self.key = None if loop.key is None else (loop, active_inputs)
