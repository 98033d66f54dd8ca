"""Linearizations of loops of unknown length: with some states kept, with all states kept, and without a VJP.

The forward sweep keeps states as if any step could be the last (`binomial_tables.online_positions`), and the reverse
sweep recomputes the others. If no more steps are possible than there are slots, as in loops over the stages of a
Runge-Kutta step, each state is written into the row of its step, and there is nothing to look up or split.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax.numpy as jnp
from jax import lax

from remat.errors import StepError
from remat.frameworks.jax.avals import (
    Array,
    Flags,
    aval_of,
    behind_barrier,
    lax_fori_loop,
    lax_while_loop,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.loops.chunked_steps import ChunkedSteps, Grads, read_rows, write_rows
from remat.frameworks.jax.loops.residuals import Activity, StepVJP
from remat.frameworks.jax.loops.reverse_sweep import CheckpointStack, reverse_sweep
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.loops.step_transforms import jvp_step
from remat.frameworks.jax.transforms.differentiable import (
    Arrays,
    DifferentiableFunction,
    ForwardModeOnly,
    Linearization,
)
from remat.frameworks.jax.transforms.primitives import call
from remat.pytree import PyTree

__all__ = ["AllStatesLinearization", "ForwardModeWhile", "WhileLinearization", "WhileLoop"]

T = TypeVar("T")


class WhileLoop(DifferentiableFunction):
    """What a linearization needs of the loop: see `WhileFunction`."""

    cond: StepJaxpr
    body: StepJaxpr
    write_once: Flags

    @abstractmethod
    def split_args(self, args: Sequence[T]) -> tuple[T, Sequence[T], Sequence[T], Sequence[T]]:
        """The maximum number of steps, the constants of the condition, those of the body, and the carry."""

    @abstractmethod
    def continues(self, args: Arrays) -> Callable[[Array, Arrays], Array]:
        """A function of the number of steps done and the carry, which says whether another step follows."""

    @abstractmethod
    def with_steps(self, cond: StepJaxpr, body: StepJaxpr, write_once: Flags | None = None) -> "WhileLoop":
        """The same loop with another condition and another body."""


class WhileLinearization(Linearization):
    """A loop of unknown length, linearized with respect to its first carry and what its body closes over."""

    extra_inputs = 3

    def __init__(self, loop: WhileLoop, step_vjp: StepVJP, active_inputs: Flags, slots: int) -> None:
        self.function = self.loop = loop
        self.step_vjp, self.activity, self.active_inputs, self.slots = step_vjp, step_vjp.activity, active_inputs, slots
        self.n_outputs, self.active_outputs = len(self.activity.carry), self.activity.carry
        self.kept, self.final = step_vjp.kept(loop.write_once)
        self.key = None if loop.key is None else (loop, active_inputs, slots)
        self.algorithm = loop.algorithm

    @property
    def needed_inputs(self) -> Flags:
        """All arguments except the leaves of the carry that neither a residual nor the condition depends on."""
        return self.loop.inputs_of((), self.step_vjp.needed)

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The loop with its body as it runs when differentiated."""
        if not self.loop.body.has_custom_rules:
            return self.loop
        return self.loop.with_steps(self.loop.cond, self.step_vjp.forward)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The last carry, and as residuals the number of steps, the final buffers and the stack of kept states."""
        _, _, consts, carry = self.loop.split_args(args)
        positions, levels = map(jnp.asarray, extra[:2])
        consts = behind_barrier(consts)
        continues = self.loop.continues(args)
        at = jnp.zeros(self.slots + 1, jnp.int32)  # level 0 is the first carry, before step 0
        stack = CheckpointStack.of(at, jnp.int32(1), select(self.kept, carry), self.slots + 1)

        def step(loop_carry: PyTree) -> PyTree:
            done, _, carry = loop_carry
            carry = self.step_vjp.forward(consts, carry, ())[0]
            # The answer is part of the carry: both loops need it, and a condition may take as long as a step.
            return done + 1, continues(done + 1, carry), carry

        def advance_and_keep(loop_carry: PyTree) -> PyTree:
            """Advance to the next position of the table, and keep the state there if another step follows."""
            done, going, carry, stack, entry = loop_carry
            done, going, carry = lax_while_loop(
                lambda inner: inner[1] & (inner[0] < positions[entry]), step, (done, going, carry)
            )
            # After the end nothing is kept: the state is written into the row above all slots.
            level = jnp.where(going, levels[entry], self.slots)
            at = lax.dynamic_update_index_in_dim(stack.at, done, level, 0)
            depth = jnp.where(going, level + 1, stack.depth)
            stack = CheckpointStack(at, depth, stack.put(level, select(self.kept, carry)).states)
            return done, going, carry, stack, entry + 1

        first = jnp.int32(0), continues(jnp.int32(0), carry), list(carry), stack, jnp.int32(0)
        done, _, carry, stack, _ = lax_while_loop(lambda loop_carry: loop_carry[1], advance_and_keep, first)
        return carry, [done, *select(self.final, carry), stack.at, stack.depth, *stack.states]

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs, by the reverse sweep."""
        _, cond_consts, consts, carry = self.loop.split_args(args)
        _, active_cond_consts, _, active_init = self.loop.split_args(self.active_inputs)
        tables, (done, *rest) = residuals[: self.extra_inputs], residuals[self.extra_inputs :]
        buffers, states = rest[: sum(self.final)], rest[sum(self.final) :]
        step = self.step_vjp.recomputed(self.kept, self.final)
        chunks = ChunkedSteps(step, behind_barrier([*consts, *buffers]), ())
        bars, avals = iter(cotangents), select(self.activity.carry, map(aval_of, carry))
        carry_bar = [next(bars) if flag else zeros_like_aval(aval) for flag, aval in zip(nonzero, avals, strict=True)]
        grads = self._pulled_back(chunks, done, states, tables, chunks.zero_grads(carry_bar))
        # The answer of a condition is piecewise constant: what only the condition reads has a zero cotangent.
        cond_bar = [zeros_like_aval(const) for const in select(active_cond_consts, cond_consts)]
        return [*cond_bar, *grads.consts, *select(select(self.activity.carry, active_init), grads.carry)]

    def _pulled_back(self, chunks: ChunkedSteps, done: Array, kept: Arrays, tables: Arrays, grads: Grads) -> Grads:
        """The cotangents after all steps are pulled back."""
        at, depth, *states = kept

        def pull_one(carry: Arrays, i: Array, grads: Grads) -> Grads:
            return chunks.vjp(grads, chunks.record(carry, i, 1)[2], (), (), i, 1)

        stack, slots = CheckpointStack(at, depth, states), jnp.int32(self.slots)
        pulled: Grads = reverse_sweep(stack, done, slots, tables[2], chunks, pull_one, grads)[0]
        return pulled

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the result, by a plain loop of steps with tangents."""
        loop, loop_args = self._jvp_loop(args, tangents)
        return loop.run(*loop_args)[len(self.activity.carry) :]

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """Like `jvp`, by a loop that can be differentiated again."""
        loop, loop_args = self._jvp_loop(args, tangents)
        return call(loop, loop_args)[len(self.activity.carry) :]

    def _jvp_loop(self, args: Arrays, tangents: Arrays) -> tuple[WhileLoop, Arrays]:
        """The loop of steps with tangents, and its arguments."""
        most, cond_consts, body_consts, carry = self.loop.split_args(args)
        _, active_cond_consts, _, active_init = self.loop.split_args(self.active_inputs)
        tangents = tangents[sum(active_cond_consts) :]  # the tangents of the condition's constants have no effect
        body, consts, dual_carry, _ = jvp_step(
            self.loop.body, self.activity, tuple(active_init), body_consts, carry, (), tangents
        )

        def cond(consts: Arrays, dual_carry: Arrays, _: Arrays) -> tuple[Arrays, Arrays]:
            return list(dual_carry), self.loop.cond(consts, dual_carry[: len(carry)], ())[1]

        avals = [*map(aval_of, [*cond_consts, *dual_carry])]
        cond_step = StepJaxpr.of(cond, avals, len(cond_consts), len(dual_carry))
        # Each place of a buffer and its tangent are written by the same step.
        write_once = (*self.loop.write_once, *select(self.activity.carry, self.loop.write_once))
        return self.loop.with_steps(cond_step, body, write_once), [most, *cond_consts, *consts, *dual_carry]

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """Raise a StepError: the number of rows for all states of the loop is unknown when it is traced."""
        raise StepError(
            "a while_loop cannot be differentiated twice in reverse mode, or more than once after it: its length is "
            "only known on the device. Forward over reverse works, as in jax.hessian; for more, "
            "give a known length to remat.scan"
        )


class AllStatesLinearization(WhileLinearization):
    """The linearization of a loop with a slot for each step that it can make."""

    extra_inputs = 0

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The last carry, and as residuals the number of steps, the final buffers and the state before each step."""
        _, _, consts, carry = self.loop.split_args(args)
        consts, continues = behind_barrier(consts), self.loop.continues(args)

        def step(loop_carry: PyTree) -> PyTree:
            done, carry, rows = loop_carry
            rows = write_rows(rows, select(self.kept, carry), done)
            return done + 1, self.step_vjp.forward(consts, carry, ())[0], rows

        rows = [zeros_like_aval(leaf, self.slots) for leaf in select(self.kept, carry)]
        first = jnp.int32(0), list(carry), rows
        done, carry, rows = lax_while_loop(lambda loop_carry: continues(*loop_carry[:2]), step, first)
        return carry, [done, *select(self.final, carry), *rows]

    def _pulled_back(self, chunks: ChunkedSteps, done: Array, kept: Arrays, tables: Arrays, grads: Grads) -> Grads:
        """The cotangents after all steps are pulled back, each from its own state."""

        def pull_one(q: Array, grads: Grads) -> Grads:
            i = done - 1 - q
            return chunks.vjp(grads, chunks.record(read_rows(kept, i), i, 1)[2], (), (), i, 1)

        pulled: Grads = lax_fori_loop(0, done, pull_one, grads)
        return pulled


class ForwardModeWhile(ForwardModeOnly, WhileLinearization):
    """The linearization of a loop whose body has a JVP but no VJP; it refuses reverse mode."""

    def __init__(self, loop: WhileLoop, activity: Activity, active_inputs: Flags, error: StepError) -> None:
        self.function = self.loop = loop
        self.activity, self.active_inputs, self.error = activity, active_inputs, error
        self.n_outputs, self.active_outputs = len(activity.carry), activity.carry
        self.key = None if loop.key is None else (loop, active_inputs)
