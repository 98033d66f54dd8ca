"""Measures the stages of a chain on JAX: each is traced and compiled on its own, and equal programs only once.

The rule: bytes are read off programs. The tape is the residuals of the stage's VJP with respect to its input and
everything that it closes over, not counting its input, its output and what it closes over. Peaks are what XLA reports
for the compiled stage, recorded or pulled back, besides its arguments, including gradients of what it closes over.
Seconds are measured in a few runs if the input is a concrete array. During a trace nothing can be run, so they are
estimated from the operations and bytes of the compiled stage: good enough to choose between stages, but not a
prediction.

What it can miss: XLA compiles and orders the program as a whole. On the CPU it merges what `jax.checkpoint` would
recompute with the first computation, so that memory is often that of a plain program: the plan keeps to its budget, and
XLA does not. The cost: three compilations for each different stage.
"""

from collections.abc import Callable, Hashable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import jax

from remat.frameworks.jax.avals import (
    Array,
    ClosedJaxpr,
    Literal,
    differentiable,
    is_tracing,
    jaxpr_as_fun,
    merge,
    nbytes,
    select,
)
from remat.frameworks.jax.segments.checkpoint import FlatFunction
from remat.problem import Chain, Option, Stage
from remat.pytree import PyTree
from remat.segments import display_name

__all__ = ["chain_key", "measure_chain"]

TIMES = 5  # runs of a compiled stage
OPERATIONS, BYTES = 1e12, 1e11  # per second of a typical device, for estimates during a trace


def measure_chain(stages: Sequence[Callable[[PyTree], PyTree]], x: PyTree) -> Chain:
    """The chain of these stages on an input like `x`, whose own bytes do not count because the caller holds it."""
    found: list[Stage] = []
    measured: dict[Hashable, Stage] = {}
    concrete = not is_tracing()

    def run_all(x: PyTree) -> None:
        for number, stage in enumerate(stages):
            name = f"{number} {display_name(stage)}"
            flat = FlatFunction(stage, name, (x,), {})
            program = jax.make_jaxpr(flat)(*flat.arrays)
            key = str(program), tuple(map(str, program.in_avals)), tuple(str(jax.typeof(c)) for c in program.consts)
            if key not in measured:
                measured[key] = _Program(program, flat.arrays).stage(timed=concrete)
            found.append(Stage.from_dict({**measured[key].to_dict(), "name": name}))
            x = flat.build(jaxpr_as_fun(program)(*flat.arrays))

    if concrete:
        run_all(x)
    else:
        flat = FlatFunction(run_all, "chain", (x,), {})
        jax.eval_shape(flat, *flat.arrays)
    return Chain(found, input=0)


def chain_key(stages: Sequence[Callable[[PyTree], PyTree]], x: PyTree) -> Hashable | None:
    """The avals of the input's arrays; None if JAX is not tracing, so that no gradient can follow."""
    if not is_tracing():
        return None
    flat = FlatFunction(lambda x: x, "input", (x,), {})
    return "jax", jax.default_backend(), *(str(jax.typeof(array)) for array in flat.arrays)


class _Program:
    """The program of one stage, as a function of what it closes over and its input, together with its derivatives."""

    def __init__(self, program: ClosedJaxpr, arrays: Sequence[Array]) -> None:
        self._program, self._n_consts = program, len(program.consts)
        self._inputs = [*program.consts, *arrays]
        self._active = [differentiable(jax.typeof(each)) for each in self._inputs]

    def stage(self, *, timed: bool) -> Stage:
        """The measured stage; with `timed`, seconds are measured on its own input."""
        tape, holds_input, holds_output = self._residuals()
        output = sum(map(nbytes, self._program.out_avals))
        inputs = self._inputs if timed else [_shape(each) for each in self._inputs]
        forward, running = _costs(self._run, inputs, timed=timed)
        record, recording = _costs(self._record, inputs, timed=timed)
        vjp = (jax.jit(self._record)(*inputs) if timed else jax.eval_shape(self._record, *inputs))[1]
        bars = [each for each in self._program.out_avals if differentiable(each)]
        bars = [jax.numpy.ones(bar.shape, bar.dtype) if timed else _shape(bar) for bar in bars]
        backward, pulling = _costs(_pull_back, [vjp, bars], timed=timed)
        gradients = sum(nbytes(jax.typeof(each)) for each in select(self._active, self._inputs))
        held = tape + (output if holds_output else 0)
        option = Option(
            tape,
            record,
            backward,
            record_peak=output + tape + recording,
            pullback_peak=held + output + gradients + pulling,
            holds_input=holds_input,
            holds_output=holds_output,
            name="keep all",
        )
        return Stage(forward, output=output, forward_workspace=running, options=[option])

    def _run(self, *inputs: Array) -> list[Array]:
        program = ClosedJaxpr(self._program.jaxpr, list(inputs[: self._n_consts]))
        return list(jaxpr_as_fun(program)(*inputs[self._n_consts :]))

    def _record(self, *inputs: Array) -> tuple[list[Array], Callable[..., PyTree]]:
        """The results and the VJP function, whose leaves are the residuals."""

        def run(*active: Array) -> tuple[list[Array], list[Array]]:
            results = self._run(*merge(self._active, active, inputs))
            return [each for each in results if differentiable(jax.typeof(each))], results

        _, vjp, results = jax.vjp(run, *select(self._active, inputs), has_aux=True)
        return results, vjp

    def _residuals(self) -> tuple[int, bool, bool]:
        """Bytes of the tape, not counting input and output, and whether it contains the input and the output."""
        flat = jax.make_jaxpr(lambda *inputs: jax.tree_util.tree_leaves(self._record(*inputs)))(*self._inputs).jaxpr
        n = len(self._program.out_avals)
        outputs, inputs = ({id(var) for var in each} for each in (flat.outvars[:n], flat.invars[self._n_consts :]))
        others = {id(var) for var in (*flat.invars[: self._n_consts], *flat.constvars)}
        residuals = {id(var): var.aval for var in flat.outvars[n:] if not isinstance(var, Literal)}
        own = [aval for number, aval in residuals.items() if number not in outputs | inputs | others]
        return sum(map(nbytes, own)), not inputs.isdisjoint(residuals), not outputs.isdisjoint(residuals)


def _pull_back(vjp: Callable[..., PyTree], bars: list[Array]) -> PyTree:
    return vjp(bars)


def _shape(value: PyTree) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _costs(function: Callable[..., PyTree], args: Sequence[PyTree], *, timed: bool) -> tuple[float, int]:
    """Seconds of a function, and the bytes that it uses besides arguments and results."""
    compiled = jax.jit(function).lower(*args).compile()
    temporary = int(getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0))
    if not timed:
        analysis: Any = compiled.cost_analysis() or {}
        analysis = analysis[0] if isinstance(analysis, list) else analysis
        return analysis.get("flops", 0.0) / OPERATIONS + analysis.get("bytes accessed", 0.0) / BYTES, temporary
    seconds = []
    jax.block_until_ready(compiled(*args))
    for _ in range(TIMES):
        began = perf_counter()
        jax.block_until_ready(compiled(*args))
        seconds.append(perf_counter() - began)
    return median(seconds), temporary
