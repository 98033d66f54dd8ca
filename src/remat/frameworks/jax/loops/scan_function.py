"""A loop of known length as a function of flat arrays (`ScanFunction`), and its linearization.

The arguments are the number of steps, what the step closes over, the first carry and the inputs; the results are the
last carry and the outputs. Undifferentiated, it is a plain loop. Its linearization follows a plan: the forward sweep
keeps states and ends with the residuals of the last chunk; the reverse sweep recomputes the residuals of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from remat.errors import StepError
from remat.frameworks.jax.avals import (
    Array,
    Aval,
    BatchAxis,
    ClosedJaxpr,
    Flags,
    behind_barrier,
    in_axes_of,
    lax_fori_loop,
    lax_scan,
    merge,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.loops.binomial_tables import binomial_table, initial_positions, round_up
from remat.frameworks.jax.loops.chunked_steps import ChunkedSteps, Grads
from remat.frameworks.jax.loops.inner_budgets import fit_step
from remat.frameworks.jax.loops.residuals import Activity, Residuals, StepVJP
from remat.frameworks.jax.loops.reverse_sweep import CheckpointStack, reverse_sweep
from remat.frameworks.jax.loops.second_order import adjoint_loop, states_loop
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.loops.step_transforms import broadcast_batch, jvp_step, vmap_step
from remat.frameworks.jax.transforms.differentiable import (
    Arrays,
    DifferentiableFunction,
    ForwardModeOnly,
    Linearization,
)
from remat.frameworks.jax.transforms.primitives import call
from remat.pytree import PyTree

__all__ = ["CheckpointLayout", "ScanFunction", "ScanLinearization", "StaticLayout"]

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointLayout:
    """A plan as it runs on a device: chunks of equal length, and slots for the states between them."""

    steps: int
    slots: int
    chunk: int = 1  # steps of a chunk

    @property
    def first_chunk(self) -> int:
        """Steps of the first chunk if it is shorter than the others, else 0."""
        return self.steps % self.chunk

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.steps // self.chunk)


class Planner(Protocol):
    """How a loop is planned when it is differentiated."""

    @property
    def capacity(self) -> int | None:
        """The budget in bytes, if it is one."""

    def limited(self, share: int) -> "Planner":
        """The planner for a smaller budget, if it suffices; itself if the budget is not in bytes."""

    def __call__(self, step_vjp: StepVJP, steps: int) -> CheckpointLayout:
        """The plan for a loop of `steps` steps."""


@dataclass(frozen=True)
class StaticLayout:
    """What a program is compiled for; the numbers of steps, slots and chunks are its inputs."""

    chunk: int
    first_chunk: int
    size: int  # how many states there is memory for


class ScanFunction(DifferentiableFunction):
    """A step run `steps` times; `rows` is that number if inputs or outputs have a row for each step, else None."""

    def __init__(self, step: StepJaxpr, rows: int | None, steps: int, planner: Planner, unroll: int | bool = 1) -> None:
        self.step, self.rows, self.steps, self.planner, self.unroll = step, rows, steps, planner, unroll
        # Without rows the number of steps is only an input, and one program serves all lengths.
        self.key = None if step.key is None else (step, rows, unroll)
        self.algorithm = steps, planner

    def with_step(self, step: StepJaxpr) -> "ScanFunction":
        """The same loop with another step."""
        return ScanFunction(step, self.rows, self.steps, self.planner, self.unroll)

    def limited(self, share: int) -> DifferentiableFunction:
        """The loop with a smaller budget."""
        planner = self.planner.limited(share)
        return self if planner is self.planner else ScanFunction(self.step, self.rows, self.steps, planner, self.unroll)

    def split_args(self, args: Sequence[T]) -> tuple[T, Sequence[T], Sequence[T], Sequence[T]]:
        """The number of steps, the constants, the carry and the inputs."""
        a, b = 1 + self.step.n_consts, 1 + self.step.n_consts + self.step.n_carry
        return args[0], args[1:a], args[a:b], args[b:]

    @property
    def has_custom_rules(self) -> bool:
        """Whether its step has custom rules."""
        return self.step.has_custom_rules

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """The step."""
        return (self.step.program,)

    def run(self, *args: Array) -> Arrays:
        """The plain loop."""
        steps, consts, carry, xs = self.split_args(args)
        if self.rows is None:
            return list(lax_fori_loop(0, steps, lambda _, carry: self.step(consts, carry, ())[0], list(carry)))
        length = None if xs else self.rows  # from the inputs if there are any: it may be symbolic in jax.export
        carry, ys = lax_scan(
            lambda carry, x: self.step(consts, carry, x), list(carry), list(xs), length=length, unroll=self.unroll
        )
        return [*carry, *ys]

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """All arguments except the leaves of the carry that these results do not depend on."""
        n, m = self.step.n_consts, self.step.n_carry
        carry = self.step.inputs_of(outputs[:m], outputs[m:])
        return (True, *([True] * n), *carry, *([True] * (len(avals) - 1 - n - m)))

    def activity(self, active_inputs: Flags) -> Activity:
        """Which inputs and outputs of a step are active if these arguments of the loop are."""
        _, consts, carry, xs = self.split_args(active_inputs)
        active_carry, ys = self.step.active(tuple(consts), tuple(carry), tuple(xs))
        return Activity(tuple(consts), tuple(xs), active_carry, ys)

    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Sequence[ArrayLike]]":
        """The linearization, and the tables of its plan."""
        activity = self.activity(active_inputs)
        planner, steps = self.planner, self.steps
        try:
            step_vjp, layout = fit_step(self.step, activity, lambda vjp: planner(vjp, steps), planner.capacity)
        except StepError as error:
            return _ForwardModeScan(self, activity, active_inputs, error), ()
        # One more than the slots, for states that are not kept. Rounded up, one program serves several numbers of
        # slots; with long chunks the memory for a state matters more than an extra program.
        size = round_up(layout.slots + 1) if layout.chunk == 1 else layout.slots + 1
        static = StaticLayout(layout.chunk, layout.first_chunk, size)
        positions = initial_positions(layout.chunks, layout.slots)
        at = np.zeros(size, np.int32)
        at[: len(positions) + 1] = [*positions, layout.chunks - 1]
        counts = np.array([layout.chunks, layout.slots, len(positions)], np.int32)
        binomials = binomial_table(layout.chunks, layout.slots)
        table = np.zeros((size, binomials.shape[1]), np.int32)
        table[: len(binomials)] = binomials
        loop = self if step_vjp.step is self.step else self.with_step(step_vjp.step)
        return ScanLinearization(loop, step_vjp, active_inputs, static), (counts, at, table)

    def batched(
        self, axis: BatchAxis, flags: Flags, args: Arrays
    ) -> tuple[DifferentiableFunction, Arrays, list[int | None]]:
        """One loop whose step is batched."""
        _, const_flags, init_flags, x_flags = self.split_args(flags)
        steps, consts, init, xs = self.split_args(args)
        step, carry_flags, y_flags = vmap_step(self.step, axis, tuple(const_flags), tuple(init_flags), tuple(x_flags))
        init = broadcast_batch(init, init_flags, carry_flags, axis.size)
        # The first axis of inputs and outputs is time, so the batch axis is the second.
        xs = [jnp.moveaxis(x, 0, 1) if flag else x for x, flag in zip(xs, x_flags, strict=True)]
        loop = self.with_step(step)
        out_axes = [*in_axes_of(carry_flags), *(1 if flag else None for flag in y_flags)]
        return loop, [steps, *consts, *init, *xs], out_axes


class ScanLinearization(Linearization):
    """A loop of known length, linearized with respect to its first carry, its inputs and what its step closes over."""

    extra_inputs = 3

    def __init__(self, loop: ScanFunction, step_vjp: StepVJP, active_inputs: Flags, static: StaticLayout) -> None:
        self.function = self.loop = loop
        self.step_vjp, self.activity = step_vjp, step_vjp.activity
        self.active_inputs, self.static = active_inputs, static
        self._set_outputs()
        self.key = None if loop.key is None else (loop, active_inputs, static)
        self.algorithm = loop.algorithm  # `differentiable_vjp` has a row for each step, and plans its loops

    @property
    def needed_inputs(self) -> Flags:
        """All arguments except the leaves of the carry that no residual depends on."""
        step = self.loop.step
        n_xs = len(step.avals) - step.n_consts - step.n_carry
        return (True, *([True] * step.n_consts), *self.step_vjp.needed, *([True] * n_xs))

    def _set_outputs(self) -> None:
        self.n_outputs = len(self.loop.step.out_avals)
        self.active_outputs = (*self.activity.carry, *self.activity.ys)

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The loop with its step as it runs when differentiated."""
        return self.loop.with_step(self.step_vjp.forward) if self.loop.step.has_custom_rules else self.loop

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results, and as residuals the states kept in the forward sweep and the residuals of the last chunk."""
        _, consts, carry, xs = self.loop.split_args(args)
        counts, at, _ = extra
        n_chunks, depth, chunk = counts[0], counts[2], self.static.chunk
        consts, xs = map(behind_barrier, (consts, xs))
        chunks = ChunkedSteps(self.step_vjp, consts, xs, chunk, self.static.first_chunk)
        ys = [zeros_like_aval(aval, self.loop.rows or 0) for aval in self.loop.step.y_avals]
        kept = self.step_vjp.needed

        def advance_and_keep(level: Any, loop_carry: PyTree) -> PyTree:
            carry, ys, stack = loop_carry
            carry, ys = chunks.advance(carry, at[level - 1], at[level], ys)
            return carry, ys, stack.put(level, select(kept, carry))

        # The position after the last kept state is the last chunk; the state put there lies above the stack.
        loop_carry = list(carry), ys, CheckpointStack.of(at, depth, select(kept, carry), self.static.size)
        carry, ys, stack = lax_fori_loop(1, depth + 1, advance_and_keep, loop_carry)
        # The last chunk is pulled back first, so it is recorded here rather than run twice.
        carry, ys, residuals = chunks.record(carry, chunks.first_step(n_chunks - 1), chunk, ys)
        return [*carry, *ys], [*stack.states, *residuals.per_step, *residuals.shared]

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs, by the reverse sweep."""
        _, consts, _, xs = self.loop.split_args(args)
        (counts, at, table), saved = residuals[:3], residuals[3:]
        n_chunks, slots, depth = counts[0], counts[1], counts[2]
        chunk, first_chunk = self.static.chunk, self.static.first_chunk
        consts, xs = map(behind_barrier, (consts, xs))
        carry_bar, y_bars, nonzero_ys = self.split_cotangents(nonzero, cotangents)
        last = ChunkedSteps(self.step_vjp, consts, xs, chunk, first_chunk)
        kept = self.step_vjp.needed
        states, leaves = saved[: sum(kept)], saved[sum(kept) :]
        n_per_step = len(self.step_vjp.per_step_avals)
        start, last_residuals = last.first_step(n_chunks - 1), Residuals([*leaves[:n_per_step]], [*leaves[n_per_step:]])
        grads = last.vjp(last.zero_grads(carry_bar), last_residuals, y_bars, nonzero_ys, start, chunk)
        # The last chunk was recorded before it was known which outputs have cotangents; the others need only those.
        chunks = ChunkedSteps(self.step_vjp_for(nonzero_ys).recomputed(kept), consts, xs, chunk, first_chunk)
        every_y = (True,) * len(y_bars)

        def pull_one(carry: Arrays, i: Array, grads: Grads) -> Grads:
            residuals = chunks.record(carry, chunks.first_step(i), chunk)[2]
            return chunks.vjp(grads, residuals, y_bars, every_y, chunks.first_step(i), chunk)

        stack = CheckpointStack(at, depth, list(states))
        first = 1 if first_chunk else 0  # a chunk of another length needs another program, after the loop
        grads, stack = reverse_sweep(stack, n_chunks - 1, slots, table, chunks, pull_one, grads, first)
        if first_chunk:
            first_residuals = chunks.record(stack.fetch(0), 0, first_chunk)[2]
            grads = chunks.vjp(grads, first_residuals, y_bars, every_y, 0, first_chunk)
        return self.input_cotangents(grads)

    def step_vjp_for(self, nonzero_ys: Flags) -> StepVJP:
        """The step with the VJP for only those outputs that have cotangents."""
        if all(nonzero_ys):
            return self.step_vjp
        ys = tuple(merge(self.activity.ys, nonzero_ys, [False] * len(self.activity.ys)))
        return StepVJP(self.loop.step, self.activity._replace(ys=ys))

    def input_cotangents(self, grads: Grads) -> Arrays:
        """The cotangents of the active arguments, without carry leaves that are active only in later steps."""
        active_init = select(self.activity.carry, self.loop.split_args(self.active_inputs)[2])
        return [*grads.consts, *select(active_init, grads.carry), *grads.xs]

    def split_cotangents(self, nonzero: Flags, cotangents: Arrays) -> tuple[list[Array], list[Array], Flags]:
        """The cotangents of the carry, zeros included, the nonzero ones of outputs, and which outputs have one."""
        n_carry = sum(self.activity.carry)
        rest = iter(cotangents)
        avals = select(self.activity.carry, self.loop.step.out_avals[: self.loop.step.n_carry])
        flags = zip(nonzero[:n_carry], avals, strict=True)
        carry_bar = [next(rest) if flag else zeros_like_aval(aval) for flag, aval in flags]
        return carry_bar, list(rest), nonzero[n_carry:]

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results, by a plain loop of steps with tangents."""
        loop, loop_args = self._jvp_loop(args, tangents)
        return self._tangents_of(loop.run(*loop_args))

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """Like `jvp`, by a loop that can be differentiated again."""
        loop, loop_args = self._jvp_loop(args, tangents)
        return self._tangents_of(call(loop, loop_args))

    def _jvp_loop(self, args: Arrays, tangents: Arrays) -> tuple[ScanFunction, Arrays]:
        """The loop of steps with tangents, and its arguments."""
        steps, consts, carry, xs = self.loop.split_args(args)
        active_init = tuple(self.loop.split_args(self.active_inputs)[2])
        step, consts, carry, xs = jvp_step(self.loop.step, self.activity, active_init, consts, carry, xs, tangents)
        return self.loop.with_step(step), [steps, *consts, *carry, *xs]

    def _tangents_of(self, results: Arrays) -> Arrays:
        """The tangents among the results of the loop with tangents: (carry, its tangents, outputs, their tangents)."""
        end_carry = self.loop.step.n_carry + sum(self.activity.carry)
        return [*results[self.loop.step.n_carry : end_carry], *results[end_carry + len(self.activity.ys) :]]

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The VJP as two loops: one returns all states, the other runs back over them."""
        steps, consts, carry, xs = self.loop.split_args(args)

        def scan(step: StepJaxpr, consts: Arrays, carry: Arrays, xs: Arrays) -> list[Array]:
            loop = ScanFunction(step, self.loop.steps, self.loop.steps, self.loop.planner)
            return call(loop, [steps, *consts, *carry, *xs])

        kept = self.step_vjp.needed
        states = states_loop(scan, self.step_vjp, kept, consts, carry, xs)
        carry_bar, y_bars, nonzero_ys = self.split_cotangents(nonzero, cotangents)
        step_vjp = self.step_vjp_for(nonzero_ys).recomputed(kept)
        return self.input_cotangents(adjoint_loop(scan, step_vjp, consts, states, xs, carry_bar, y_bars))


class _ForwardModeScan(ForwardModeOnly, ScanLinearization):
    """The linearization of a loop whose step has a JVP but no VJP; it refuses reverse mode."""

    def __init__(self, loop: ScanFunction, activity: Activity, active_inputs: Flags, error: StepError) -> None:
        self.function = self.loop = loop
        self.activity, self.active_inputs, self.error = activity, active_inputs, error
        self._set_outputs()
        self.key = None if loop.key is None else (loop, active_inputs)

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """Raise the StepError that says why there is no VJP."""
        raise self.error
