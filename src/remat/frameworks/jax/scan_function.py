"""A loop of known length as a function of flat arrays, and its derivative.

The arguments are the number of steps, what the step closes over, the first carry and the inputs; the results are the
last carry and the outputs. Without derivative it is a plain loop. The derivative keeps states in a first sweep, which
ends with the tape of the last unit, and recomputes the others in the reverse sweep, as a plan says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from remat.frameworks.jax.avals import Flags, behind_barrier, merge, select, zeros_like_aval
from remat.frameworks.jax.batch_axes import in_axes_of
from remat.frameworks.jax.binomial_tables import binomial_table, initial_positions, round_up
from remat.frameworks.jax.chunked_steps import ChunkedSteps, Grads
from remat.frameworks.jax.differentiable import Arrays, DifferentiableFunction, Linearization
from remat.frameworks.jax.primitives import call
from remat.frameworks.jax.residuals import Activity, StepVJP, Tape
from remat.frameworks.jax.reverse_sweep import CheckpointStack, reverse_sweep
from remat.frameworks.jax.step_jaxpr import Step
from remat.frameworks.jax.step_transforms import broadcast_batch, jvp_step, vmap_step

__all__ = ["CheckpointLayout", "ScanFunction", "StaticLayout"]


@dataclass(frozen=True)
class CheckpointLayout:
    """What a plan comes to: units of so many steps, and so many slots."""

    steps: int
    slots: int
    length: int = 1  # steps of a unit

    @property
    def head(self) -> int:
        """Steps of the first unit, if it is shorter."""
        return self.steps % self.length

    @property
    def units(self) -> int:
        """How many units there are."""
        return -(-self.steps // self.length)


Planner = Callable[[StepVJP, int], CheckpointLayout]


@dataclass(frozen=True)
class StaticLayout:
    """What is compiled for: all but the numbers that are given when it runs."""

    length: int
    head: int
    size: int  # states that there is room for


class ScanFunction(DifferentiableFunction):
    """Steps one after another. `rows` is their number, if inputs or outputs have a row for each of them."""

    def __init__(self, step: Step, rows: int | None, steps: int, planner: Planner) -> None:
        self.step, self.rows, self.steps, self.planner = step, rows, steps, planner
        self.key = None if step.key is None else (step, rows)

    def apart(self, args: Arrays) -> tuple[Any, Arrays, Arrays, Arrays]:
        """The number of steps, the constants, the carry and the inputs."""
        a, b = 1 + self.step.consts, 1 + self.step.consts + self.step.carry
        return args[0], args[1:a], args[a:b], args[b:]

    def run(self, *args: Any) -> Arrays:
        """The plain loop."""
        steps, consts, carry, xs = self.apart(args)
        if self.rows is None:
            return list(lax.fori_loop(0, steps, lambda _, carry: self.step(consts, carry, ())[0], list(carry)))
        carry, ys = lax.scan(lambda carry, x: self.step(consts, carry, x), list(carry), list(xs), length=self.rows)
        return [*carry, *ys]

    def activity(self, active_inputs: Flags) -> Activity:
        """Where tangents flow to, from the arguments that move."""
        _, consts, carry, xs = self.apart(active_inputs)
        through, ys = self.step.flows(tuple(consts), tuple(carry), tuple(xs))
        return Activity(tuple(consts), tuple(xs), through, ys)

    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Arrays]":
        """The derivative, for which a plan is made."""
        step_vjp = StepVJP(self.step, self.activity(active_inputs))
        places = self.planner(step_vjp, self.steps)
        size = round_up(places.slots + 1) if places.length == 1 else places.slots + 1
        program = StaticLayout(places.length, places.head, size)
        at = np.zeros(size, np.int32)
        first = initial_positions(places.units, places.slots)
        at[: len(first) + 1] = [*first, places.units - 1]
        numbers = np.array([places.units, places.slots, len(first)], np.int32)
        found = binomial_table(places.units, places.slots)
        table = np.zeros((size, found.shape[1]), np.int32)
        table[: len(found)] = found
        return ScanLinearization(self, step_vjp, active_inputs, program), (numbers, at, table)

    def batched(self, axis: Any, flags: Flags, args: Arrays) -> tuple[DifferentiableFunction, Arrays, list[int | None]]:
        """One loop of steps for a batch."""
        _, const_flags, had, xs = self.apart(flags)
        steps, consts, init, inputs = self.apart(args)
        step, carry, ys = vmap_step(self.step, axis, tuple(const_flags), tuple(had), tuple(xs))
        init = broadcast_batch(init, had, carry, axis.size)
        inputs = [jnp.moveaxis(x, 0, 1) if flag else x for x, flag in zip(inputs, xs, strict=True)]
        loop = ScanFunction(step, self.rows, self.steps, self.planner)
        return loop, [steps, *consts, *init, *inputs], [*in_axes_of(carry), *(1 if flag else None for flag in ys)]


class ScanLinearization(Linearization):
    """How the last carry and the outputs change with the first carry, the inputs and what the step closes over."""

    extras = 3

    def __init__(self, loop: ScanFunction, step_vjp: StepVJP, active_inputs: Flags, program: StaticLayout) -> None:
        self.function = self.loop = loop
        self.step_vjp, self.activity, self.active_inputs, self.program = (
            step_vjp,
            step_vjp.activity,
            active_inputs,
            program,
        )
        self.outs = len(loop.step.outs)
        self.active_outputs = (*self.activity.carry, *self.activity.ys)
        self.key = None if loop.key is None else (loop, active_inputs, program)
        self.written = loop.steps, loop.planner

    @property
    def run(self) -> DifferentiableFunction:
        """The loop of steps as they are run where they are differentiated."""
        if not self.loop.step.has_custom_rules:
            return self.loop
        return ScanFunction(self.step_vjp.run, self.loop.rows, self.loop.steps, self.loop.planner)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results, the states kept in the first sweep, and the tape of the last unit."""
        _, consts, carry, xs = self.loop.apart(args)
        numbers, at, _ = extra
        count, depth, length = numbers[0], numbers[2], self.program.length
        consts, xs = map(behind_barrier, (consts, xs))
        units = ChunkedSteps(self.step_vjp, consts, xs, length, self.program.head)
        ys = [zeros_like_aval(aval, self.loop.rows or 0) for aval in self.loop.step.outs[self.loop.step.carry :]]

        def keep(level: Any, held: Any) -> Any:
            carry, ys, stack = held
            carry, ys = units.advance(carry, at[level - 1], at[level], ys)
            return carry, ys, stack.put(level, carry)

        # The place after the last one kept is the last unit's: what is put there is not held.
        held = list(carry), ys, CheckpointStack.of(at, depth, carry, self.program.size)
        carry, ys, stack = lax.fori_loop(1, depth + 1, keep, held)
        last = units.start(count - 1)
        carry, ys, tape = units.record(carry, last, length, ys)
        return [*carry, *ys], [*stack.states, *tape.per_step, *tape.shared]

    def vjp(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of what moves, by the reverse sweep."""
        _, consts, carry, xs = self.loop.apart(args)
        (numbers, at, table), rest = saved[:3], saved[3:]
        count, slots, depth = numbers[0], numbers[1], numbers[2]
        length, head = self.program.length, self.program.head
        consts, xs = map(behind_barrier, (consts, xs))
        carry_bar, y_bars, given_ys = self._cotangents(given, cotangents)
        last = ChunkedSteps(self.step_vjp, consts, xs, length, head)
        states, tape = rest[: len(carry)], rest[len(carry) :]
        per_step = len(self.step_vjp.avals)
        start, held = last.start(count - 1), Tape([*tape[:per_step]], [*tape[per_step:]])
        pulled = last.vjp(last.zero_grads(carry_bar), held, y_bars, given_ys, start, length)
        units = ChunkedSteps(self.step_vjp_for(given_ys), consts, xs, length, head)
        every = (True,) * len(y_bars)

        def pull_one(carry: Arrays, i: Any, pulled: Grads) -> Grads:
            tape = units.record(carry, units.start(i), length)[2]
            return units.vjp(pulled, tape, y_bars, every, units.start(i), length)

        stack = CheckpointStack(at, depth, list(states))
        pulled, stack = reverse_sweep(stack, count - 1, slots, table, units, pull_one, pulled, 1 if head else 0)
        if head:
            first = units.record(stack.fetch(0), 0, head)[2]
            pulled = units.vjp(pulled, first, y_bars, every, 0, head)
        return self._wanted(pulled.consts, pulled.carry, pulled.xs)

    def step_vjp_for(self, given: Flags) -> StepVJP:
        """The step with its tape, for those outputs that are given a cotangent."""
        if all(given):
            return self.step_vjp
        ys = tuple(merge(self.activity.ys, given, [False] * len(self.activity.ys)))
        return StepVJP(self.loop.step, self.activity._replace(ys=ys))

    def _wanted(self, consts: Arrays, carry: Arrays, xs: Arrays) -> Arrays:
        """The cotangents of what moves, by those of all that tangents flow through."""
        return [*consts, *select(select(self.activity.carry, self.loop.apart(self.active_inputs)[2]), carry), *xs]

    def _cotangents(self, given: Flags, cotangents: Arrays) -> tuple[list[Any], list[Any], Flags]:
        """The cotangents of the carry, zeros where none is given; those of outputs; which outputs have one."""
        through = sum(self.activity.carry)
        parts = iter(cotangents)
        avals = select(self.activity.carry, self.loop.step.outs[: self.loop.step.carry])
        carry = [
            next(parts) if flag else zeros_like_aval(aval) for flag, aval in zip(given[:through], avals, strict=True)
        ]
        return carry, list(parts), given[through:]

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results, by a plain loop of steps with tangents."""
        jvp_step, inputs = self._dual(args, tangents)
        return self._tangents_of(jvp_step.run(*inputs))

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The same by a loop that can be differentiated again."""
        jvp_step, inputs = self._dual(args, tangents)
        return self._tangents_of(call(jvp_step, inputs))

    def _dual(self, args: Arrays, tangents: Arrays) -> tuple[ScanFunction, Arrays]:
        """The loop of steps with tangents, and its arguments."""
        steps, consts, carry, xs = self.loop.apart(args)
        active_inputs = tuple(self.loop.apart(self.active_inputs)[2])
        step, consts, carry, xs = jvp_step(self.loop.step, self.activity, active_inputs, consts, carry, xs, tangents)
        loop = ScanFunction(step, self.loop.rows, self.loop.steps, self.loop.planner)
        return loop, [steps, *consts, *carry, *xs]

    def _tangents_of(self, found: Arrays) -> Arrays:
        activity, m = self.activity, self.loop.step.carry
        through, outputs = sum(activity.carry), len(activity.ys)
        return [*found[m : m + through], *found[m + through + outputs :]]

    def differentiable_vjp(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The pullback as two loops: one that gives all states, and one that runs back over them."""
        from remat.frameworks.jax.second_order import adjoint

        return adjoint(self, given, args, cotangents)
