"""A loop of unknown length as a function of flat arrays (`WhileFunction`).

The arguments are the maximum number of steps, what the condition and the body close over, and the first carry; the
result is the last carry. For a batch, it runs as long as any member does. Its linearizations are in
`while_linearization.py`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from remat.errors import StepError
from remat.frameworks.jax.avals import (
    Array,
    Aval,
    BatchAxis,
    ClosedJaxpr,
    Flags,
    aval_of,
    in_axes_of,
    inputs_needed,
    lax_while_loop,
)
from remat.frameworks.jax.loops.binomial_tables import binomial_table, online_positions
from remat.frameworks.jax.loops.inner_budgets import fit_step
from remat.frameworks.jax.loops.residuals import Activity, StepVJP
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.loops.step_transforms import broadcast_batch, vmap_step
from remat.frameworks.jax.loops.while_linearization import (
    AllStatesLinearization,
    ForwardModeWhile,
    WhileLinearization,
    WhileLoop,
)
from remat.frameworks.jax.transforms.differentiable import Arrays, DifferentiableFunction, Linearization
from remat.pytree import PyTree

__all__ = ["WhileFunction"]

T = TypeVar("T")


class SlotsFor(Protocol):
    """How many states a loop keeps, decided when it is differentiated."""

    @property
    def capacity(self) -> int | None:
        """The budget in bytes, if it is one."""

    def limited(self, share: int) -> "SlotsFor":
        """The number for a smaller budget, if it suffices; itself if the budget is not in bytes."""

    def __call__(self, step_vjp: StepVJP) -> int:
        """The number of states for a loop with this step."""


class WhileFunction(WhileLoop):
    """A body that runs while a condition holds; the condition is a step that keeps its carry and outputs the answer.

    `bound` is the maximum number of steps, if known when the loop is traced. `write_once` flags carry leaves in which
    each place is written by at most one step and read only by later steps: see `StepVJP.kept`.
    """

    def __init__(
        self,
        cond: StepJaxpr,
        body: StepJaxpr,
        slots: SlotsFor,
        bound: int | None = None,
        write_once: Flags | None = None,
    ) -> None:
        self.cond, self.body, self.slots, self.bound = cond, body, slots, bound
        self.write_once = (False,) * body.n_carry if write_once is None else write_once
        self.key = None if cond.key is None or body.key is None else (cond, body, self.write_once)
        self.algorithm = slots, bound

    def with_steps(self, cond: StepJaxpr, body: StepJaxpr, write_once: Flags | None = None) -> "WhileFunction":
        """The same loop with another condition and another body."""
        write_once = self.write_once if write_once is None else write_once
        return WhileFunction(cond, body, self.slots, self.bound, write_once)

    def limited(self, share: int) -> DifferentiableFunction:
        """The loop with a smaller budget."""
        slots = self.slots.limited(share)
        if slots is self.slots:
            return self
        return WhileFunction(self.cond, self.body, slots, self.bound, self.write_once)

    def split_args(self, args: Sequence[T]) -> tuple[T, Sequence[T], Sequence[T], Sequence[T]]:
        """The maximum number of steps, the constants of the condition, those of the body, and the carry."""
        a, b = 1 + self.cond.n_consts, 1 + self.cond.n_consts + self.body.n_consts
        return args[0], args[1:a], args[a:b], args[b:]

    def continues(self, args: Arrays) -> Callable[[Array, Arrays], Array]:
        """A function of the number of steps done and the carry, which says whether another step follows."""
        most, consts, _, _ = self.split_args(args)

        def continues(done: Array, carry: Arrays) -> Array:
            return jnp.asarray(self.cond(consts, carry, ())[1][0], bool) & (done < most)

        return continues

    @property
    def has_custom_rules(self) -> bool:
        """Whether its body has custom rules."""
        return self.body.has_custom_rules

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """The condition and the body."""
        return self.cond.program, self.body.program

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
        """All arguments except the leaves of the carry that neither these results nor the condition depend on."""
        asked = inputs_needed(self.cond.program, [False] * self.cond.n_carry + [True])[self.cond.n_consts :]
        carry = self.body.inputs_of(tuple(a or b for a, b in zip(outputs, asked, strict=True)), ())
        return (True, *([True] * (self.cond.n_consts + self.body.n_consts)), *carry)

    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Sequence[ArrayLike]]":
        """The linearization, with as many slots as fit, and its tables."""
        _, _, consts, carry = self.split_args(active_inputs)
        active_carry, _ = self.body.active(tuple(consts), tuple(carry), ())
        activity = Activity(tuple(consts), (), active_carry, ())
        try:
            step_vjp, slots = fit_step(self.body, activity, self.slots, self.slots.capacity)
        except StepError as error:
            return ForwardModeWhile(self, activity, active_inputs, error), ()
        loop = self if step_vjp.step is self.body else self.with_steps(self.cond, step_vjp.step)
        if self.bound is not None and self.bound <= slots:
            return AllStatesLinearization(loop, step_vjp, active_inputs, max(1, self.bound)), ()
        # The tables depend only on the slots, so one program serves any number of steps.
        tables = (*online_positions(slots), binomial_table(None, slots))
        return WhileLinearization(loop, step_vjp, active_inputs, slots), tables

    def batched(
        self, axis: BatchAxis, flags: Flags, args: Arrays
    ) -> tuple[DifferentiableFunction, Arrays, list[int | None]]:
        """One loop for a batch, which runs as long as any member does; members that have ended keep their carry."""
        cond_flags, body_flags, init_flags = map(tuple, self.split_args(flags)[1:])
        most, cond_consts, body_consts, init = self.split_args(args)
        body, carry_flags, _ = vmap_step(self.body, axis, body_flags, init_flags, ())
        cond, _, (answers_differ,) = vmap_step(self.cond, axis, cond_flags, carry_flags, ())
        if not answers_differ:  # all members end at the same step
            init = broadcast_batch(init, init_flags, carry_flags, axis.size)
            loop = self.with_steps(cond, body)
            return loop, [most, *cond_consts, *body_consts, *init], in_axes_of(carry_flags)
        # A member that has ended keeps its carry while others continue, so each leaf of the carry differs between
        # members.
        carry_flags = (True,) * len(carry_flags)
        init = broadcast_batch(init, init_flags, carry_flags, axis.size)
        safe, body_consts = _safe_inputs(self, axis, cond_flags, body_flags, [most, *cond_consts, *body_consts, *init])
        consts = [*cond_consts, *safe, *body_consts]
        cond, body = _masked_step(self, axis, cond_flags, body_flags, [most, *cond_consts, *body_consts, *init])
        loop = _MaskedLoop(cond, body, self, axis, (False, *cond_flags, *body_flags, *carry_flags))
        return loop, [most, *cond_consts, *consts, *init], in_axes_of(carry_flags)


class _MaskedLoop(WhileFunction):
    """The loop of a batch whose members end at different steps, in a differentiable form: see `_safe_inputs`.

    Undifferentiated, it is vmap of the member's plain loop, which makes fewer copies of what the body writes into.
    """

    def __init__(self, cond: StepJaxpr, body: StepJaxpr, member: WhileFunction, axis: BatchAxis, flags: Flags) -> None:
        super().__init__(cond, body, member.slots, member.bound, member.write_once)
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
    """Carries and body constants from which a step can safely run for members that have ended.

    All members run the body, and the results of those that have ended are discarded. But 0 · inf is nan: a step of an
    ended member that overflows would reach its gradient through the zero cotangent. So inputs are replaced as well as
    results (the double-where trick). A member that ran gets its first carry again, from which a step was run in any
    case. A member that never ran gets all inputs of another member, since with its own a step might be inf or nan, or
    not end.
    """
    _, cond_consts, body_consts, init = loop.split_args(args)
    if axis.size == 0:  # no member runs, and there is no other to take inputs from
        return init, body_consts
    begins = _active_mask(loop, axis, cond_flags, cond_consts, init)
    first = jnp.argmax(begins)  # if no member runs, neither does the body

    def replaced(value: Array) -> Array:
        other = lax.dynamic_index_in_dim(value, first, keepdims=True)
        return _where(begins, [value], [jnp.broadcast_to(lax.stop_gradient(other), value.shape)])[0]

    consts = [replaced(const) if flag else const for const, flag in zip(body_consts, body_flags, strict=True)]
    return [lax.stop_gradient(replaced(value)) for value in init], consts


def _masked_step(
    loop: WhileFunction, axis: BatchAxis, cond_flags: Flags, body_flags: Flags, args: Arrays
) -> tuple[StepJaxpr, StepJaxpr]:
    """The condition and the body of a batch whose members end at different steps.

    The constants of the body are those of the condition, the safe carries, and its own.
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
    """The values for members whose mask is set, the others elsewhere."""

    def one(a: Array, b: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    return [one(a, b) for a, b in zip(values, others, strict=True)]
