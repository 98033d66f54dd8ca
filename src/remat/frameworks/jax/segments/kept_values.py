"""What a segment keeps within a budget in bytes: values of its program, chosen by the planner for blocks.

In: a program (a jaxpr), and the bytes that it may keep between forward and backward besides its arguments and results.
Out: its results, as a `jax.checkpoint` segment that saves exactly the chosen values. These are named in the program
(`checkpoint_name`), and the policy saves the names.

Rule. The program's operations, with called programs (`jit`) inlined, become the operations of a graph. What the
backward of an operation reads is found by linearizing the operation alone: its arguments or results, or what its
residuals are computed from. Times are estimated, from operation counts for matrix products and convolutions, otherwise
from bytes moved. Loops and branches inside are single operations.

What it can miss: what XLA fuses, and keeps or recomputes on its own; the speed of the machine at hand. Gradients do not
depend on the choice. The cost: one trace of each kind of operation for each trace of the segment.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

from remat.frameworks.jax.avals import (
    Array,
    ClosedJaxpr,
    Literal,
    called_program,
    differentiable,
    equation_program,
    inputs_needed,
    jax_checkpoint,
    jaxpr_as_fun,
    nbytes,
    operation_name,
)
from remat.planners.graph.block_options import block_options
from remat.problem import Graph, Operation, Storage

__all__ = ["kept_values", "run_keeping"]

POINTS = 24  # how many choices are compared
# Of a current accelerator; only their ratio matters.
_OPERATIONS_A_SECOND, _BYTES_A_SECOND = 4e14, 3e12
_UNKNOWN_TURNS = 100  # assumed for a loop whose length depends on data


class _Step(NamedTuple):
    """An operation of the program, with the numbers of the values that it reads (None for literals) and makes."""

    program: ClosedJaxpr  # this operation alone
    equation: Any
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


class _Steps:
    """The operations of a program, with called programs inlined."""

    def __init__(self, program: ClosedJaxpr) -> None:
        self.avals: list[Any] = []
        self.steps: list[_Step] = []
        jaxpr = program.jaxpr
        self.arguments = [self._new(var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)]
        numbers = dict(zip((*jaxpr.constvars, *jaxpr.invars), self.arguments, strict=True))
        self._add(program, jaxpr, numbers)
        self.results = [None if isinstance(var, Literal) else numbers[var] for var in jaxpr.outvars]
        self.literals = [var.val if isinstance(var, Literal) else None for var in jaxpr.outvars]

    def _new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def _add(self, program: ClosedJaxpr, jaxpr: Any, numbers: dict[Any, int]) -> None:
        for eqn in jaxpr.eqns:
            inner = called_program(eqn)
            if inner is not None and not any(isinstance(var, Literal) for var in (*eqn.invars, *inner.outvars)):
                inside = dict(zip(inner.invars, (numbers[var] for var in eqn.invars), strict=True))
                self._add(program, inner, inside)  # the policy would not see names inside a call
                numbers.update(zip(eqn.outvars, (inside[var] for var in inner.outvars), strict=True))
                continue
            inputs = tuple(None if isinstance(var, Literal) else numbers[var] for var in eqn.invars)
            numbers.update((var, self._new(var.aval)) for var in eqn.outvars)
            outputs = tuple(numbers[var] for var in eqn.outvars)
            self.steps.append(_Step(equation_program(program, eqn), eqn, inputs, outputs))

    def run(self, names: dict[int, str], arguments: Sequence[Array]) -> list[Array]:
        """The results, with `checkpoint_name` applied to the values in `names`."""
        values = dict(zip(self.arguments, arguments, strict=True))
        for step in self.steps:
            made = jaxpr_as_fun(step.program)(*(values[number] for number in step.inputs if number is not None))
            for number, value in zip(step.outputs, made, strict=True):
                values[number] = checkpoint_name(value, names[number]) if number in names else value
        results: list[Any] = [self.literals[at] if n is None else values[n] for at, n in enumerate(self.results)]
        return results


def run_keeping(memory: int, program: ClosedJaxpr, arguments: Sequence[Array]) -> list[Array]:
    """The results of a program, which keeps values of at most `memory` bytes for its backward."""
    steps = _Steps(program)
    names = {number: f"remat.{number}" for number in _kept(steps, memory)}
    policy = jax.checkpoint_policies.save_only_these_names(*names.values())
    run = partial(steps.run, names)
    return jax_checkpoint(lambda *args: run(args), policy=policy)(*program.consts, *arguments)  # type: ignore[no-any-return]


def kept_values(memory: int, program: ClosedJaxpr) -> list[Any]:
    """The avals of what a program keeps within these bytes."""
    steps = _Steps(program)
    return [steps.avals[number] for number in _kept(steps, memory)]


def _kept(steps: _Steps, memory: int) -> list[int]:
    """The numbers of the values to keep: the fastest of the planner's choices that fit, filled up greedily."""
    graph = _graph(steps)
    outputs = frozenset(graph.outputs)
    found = [frozenset[int]()]
    if graph.saved and memory:
        # Without OR-Tools the points of the hull are far apart; the bytes between them are filled greedily.
        found += [option.kept for option in block_options(graph, points=POINTS, tiny=0)]
    fitting = [_filled(graph, kept | outputs, memory) for kept in found if graph.bytes_of(kept - outputs) <= memory]
    kept = min(fitting, key=lambda each: (_seconds_again(graph, each)[0], graph.bytes_of(each)))
    needed = _seconds_again(graph, kept)[1]  # the caller keeps outputs anyway; save only those that are used
    return sorted(kept & needed)


def _filled(graph: Graph, kept: frozenset[int], memory: int) -> frozenset[int]:
    """The choice, with further values in the bytes left over, taking first those that save most time per byte."""
    left = memory - graph.bytes_of(kept - frozenset(graph.outputs))
    while True:
        seconds, _ = _seconds_again(graph, kept)
        gains = [
            ((seconds - _seconds_again(graph, kept | {storage})[0]) / graph.storages[storage].bytes, storage)
            for storage, maker in graph.maker.items()
            if maker < graph.turn and storage not in kept and 0 < graph.storages[storage].bytes <= left
        ]
        gain, best = max(gains, default=(0.0, 0))
        if gain <= 0:
            return kept
        kept |= {best}
        left -= graph.storages[best].bytes


def _seconds_again(graph: Graph, kept: frozenset[int]) -> tuple[float, frozenset[int]]:
    """The time to recompute what the backward reads and is not kept, and the kept values read on the way."""
    runs: set[int] = set()
    used: set[int] = set()
    wanted = list(graph.saved)
    while wanted:
        storage = wanted.pop()
        if storage in kept:
            used.add(storage)
        elif storage in graph.maker and graph.maker[storage] not in runs:
            runs.add(graph.maker[storage])
            wanted += graph.operations[graph.maker[storage]].inputs
    return sum(graph.operations[number].seconds for number in runs), frozenset(used)


def _graph(steps: _Steps) -> Graph:
    """The operations as a graph, followed by the backward of those that have one, in reverse order."""
    active = {number for number in steps.arguments if differentiable(steps.avals[number])}
    forward: list[Operation] = []
    backward: list[Operation] = []
    for step in steps.steps:
        reads = [number for number in step.inputs if number is not None]
        name = operation_name(step.equation)
        forward.append(Operation(name, _seconds(step.equation), reads, step.outputs))
        if any(number in active for number in reads):
            made = [number for number in step.outputs if differentiable(steps.avals[number])]
            active.update(made)
            if made:
                backward.insert(0, Operation(f"pullback of {name}", 0.0, _read_by_pullback(step), backward=True))
    storages = [Storage(nbytes(aval)) for aval in steps.avals]
    results = [number for number in steps.results if number is not None and number not in steps.arguments]
    return Graph([*forward, *backward], storages, results)


def _read_by_pullback(step: _Step) -> list[int]:
    """The values that the pullback of an operation reads, or that its residuals are computed from."""
    inputs = [number for number in step.inputs if number is not None]
    run = jaxpr_as_fun(step.program)

    def results_and_residuals(*args: Array) -> list[Array]:
        results, pullback = jax.vjp(run, *args)
        return [*results, *jax.tree_util.tree_leaves(pullback)]

    try:
        program = jax.make_jaxpr(results_and_residuals)(*step.program.in_avals)
    except Exception:  # no pullback: it may read anything the operation has
        return [*inputs, *step.outputs]
    jaxpr, n = program.jaxpr, len(step.outputs)
    known = dict(zip(jaxpr.invars, inputs, strict=True)) | {
        var: number for var, number in zip(jaxpr.outvars[:n], step.outputs, strict=True) if not isinstance(var, Literal)
    }
    found: dict[int, None] = {}
    for at, var in enumerate(jaxpr.outvars[n:], n):
        if isinstance(var, Literal) or var in jaxpr.constvars:
            continue
        if var in known:
            found[known[var]] = None
            continue
        used = [place == at for place in range(len(jaxpr.outvars))]
        needed = inputs_needed(program, used)
        found.update((number, None) for number, is_needed in zip(inputs, needed, strict=True) if is_needed)
    return list(found)


def _seconds(eqn: Any) -> float:
    """An estimate of the time of an operation."""
    avals = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    moved: float = sum(nbytes(aval) for aval in avals if hasattr(aval, "shape")) / _BYTES_A_SECOND
    params = eqn.params
    if operation_name(eqn) == "dot_general":
        contracted: int = prod(eqn.invars[0].aval.shape[axis] for axis in params["dimension_numbers"][0][0])
        return float(moved + 2 * prod(eqn.outvars[0].aval.shape) * contracted / _OPERATIONS_A_SECOND)
    if operation_name(eqn) == "conv_general_dilated":
        kernel, spec = eqn.invars[1].aval.shape, params["dimension_numbers"].rhs_spec
        each = prod(kernel) / kernel[spec[0]]
        return float(moved + 2 * prod(eqn.outvars[0].aval.shape) * each / _OPERATIONS_A_SECOND)
    inner = [value for value in params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr")]
    turns = params.get("length", _UNKNOWN_TURNS if operation_name(eqn) == "while" else 1)
    inside = sum(_seconds(each) for program in inner for each in getattr(program, "jaxpr", program).eqns)
    return float(moved + turns * inside)
