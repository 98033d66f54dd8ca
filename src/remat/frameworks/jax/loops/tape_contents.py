"""Lists the tape of a step or a segment: its residuals, with the operation and the source line that made each.

The rule: a program says which of its results are residuals, and the traceback of each equation says which line of the
user's code it comes from. So everything is known when the loop is traced, and nothing is run.

What it can miss: what XLA makes of the program. XLA may store less by fusing, and when it stores what is not visible;
the bytes here are those of the arrays passed from forward to backward. Cost: about 10 us a residual, only with a
profile.
"""

import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import PurePath
from typing import Any
from weakref import WeakKeyDictionary

import jax

from remat.frameworks.jax.avals import (
    ClosedJaxpr,
    Literal,
    Tracer,
    called_program,
    differentiable,
    jaxpr_as_fun,
    nbytes,
    operation_name,
    trace_of,
)
from remat.frameworks.jax.loops.residuals import StepVJP
from remat.profiling.segment_contents import SavedTensor, SegmentContents
from remat.profiling.source_location import SourceLocation
from remat.profiling.tape_contents import TapeContents

__all__ = ["StepListing", "numbered", "residuals_of_step", "segment_contents"]


class StepListing:
    """Lists the residuals of a step, which are known before it runs."""

    def __init__(self, step_vjp: StepVJP) -> None:
        self._step_vjp = step_vjp

    def begin(self) -> None:
        """Do nothing: nothing has to be watched."""

    def end(self) -> None:
        """Do nothing."""

    def contents(self, tape: Any) -> TapeContents:
        """The residuals of one step."""
        return residuals_of_step(self._step_vjp)


def residuals_of_step(step_vjp: StepVJP) -> TapeContents:
    """The residuals stored for each step; shared residuals, constants and inputs are not part of its tape."""
    jaxpr, step = step_vjp.program.jaxpr, step_vjp.step
    stored = step_vjp.stored_per_step(jaxpr.outvars[len(step.out_avals) :])
    carry = jaxpr.invars[step.n_consts : step.n_consts + step.n_carry]
    return TapeContents.of(list(saved_arrays(jaxpr, stored, carry, "the state before")))


def segment_contents(name: str, program: ClosedJaxpr, args: Sequence[Any]) -> SegmentContents:
    """What a segment holds (its traced arguments), and what plain differentiation would keep in addition."""

    def outputs_and_residuals(consts: list[Any], *args: Any) -> list[Any]:
        def run(consts: list[Any], *args: Any) -> list[Any]:
            return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, consts))(*args)  # type: ignore[no-any-return]

        outputs, vjp = jax.vjp(run, consts, *args)
        return [*outputs, *jax.tree_util.tree_leaves(vjp)]

    held = sum(nbytes(jax.typeof(arg)) for arg in {id(arg): arg for arg in args if isinstance(arg, Tracer)}.values())
    if not any(map(differentiable, [*map(jax.typeof, program.consts), *program.in_avals])):
        return SegmentContents(name, held, 0)
    jaxpr = jax.make_jaxpr(outputs_and_residuals)(list(program.consts), *args).jaxpr
    n = len(program.out_avals)
    anyway = {id(var) for var in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars[:n])}
    arrays = tuple(saved_arrays(jaxpr, [var for var in jaxpr.outvars[n:] if id(var) not in anyway], (), ""))
    return SegmentContents(name, held, sum(array.bytes for array in arrays), arrays)


# For each trace, how many segments of each name it contains.
_segments: "WeakKeyDictionary[Any, Counter[str]]" = WeakKeyDictionary()


def numbered(name: str, values: Any) -> str:
    """The name of a segment, followed by a number from the second segment of that name in a trace on."""
    # The arguments may belong to several traces, such as those of jit and of grad inside it.
    traces = {id(found): found for leaf in jax.tree_util.tree_leaves(values) if (found := trace_of(leaf)) is not None}
    counts = [names for trace in traces.values() if (names := _segments_of(trace)) is not None]
    number = 1 + max((names[name] for names in counts), default=0)
    for names in counts:
        names[name] = number
    return name if number == 1 else f"{name} ({number})"


def _segments_of(trace: Any) -> "Counter[str] | None":
    try:
        return _segments.setdefault(trace, Counter())
    except TypeError:  # the trace does not support weak references
        return None


def saved_arrays(jaxpr: Any, variables: Sequence[Any], given: Sequence[Any], word: str) -> Iterator[SavedTensor]:
    """The residuals of a program, each once; `word` describes those that are among the `given` variables."""
    made = {id(var): eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    inputs, seen = {id(var) for var in given}, set[int]()
    for var in variables:
        if isinstance(var, Literal) or id(var) in seen:
            continue
        seen.add(id(var))
        eqn = made.get(id(var))
        op, line = (word if id(var) in inputs else "a constant", "") if eqn is None else _origin(eqn, var)
        yield SavedTensor(op, tuple(var.aval.shape), str(var.aval.dtype), nbytes(var.aval), line)


def _origin(eqn: Any, var: Any) -> tuple[str, str]:
    """The name and line of the operation that makes a variable, looking into called programs."""
    line = _line(eqn)
    while (inner := called_program(eqn)) is not None:
        place = next(k for k, each in enumerate(eqn.outvars) if each is var)
        var = inner.outvars[place]
        below = next((each for each in inner.eqns if any(made is var for made in each.outvars)), None)
        if below is None:
            break
        eqn = below
        line = _line(eqn) or line
    return operation_name(eqn), line


def _line(eqn: Any) -> str:
    """The innermost line of the user's code that an equation comes from."""
    for frame in getattr(eqn.source_info.traceback, "frames", None) or ():
        if not _is_internal(frame.file_name):
            return SourceLocation(frame.file_name, frame.line_num, frame.function_name).short
    return ""


@cache
def _is_internal(file: str) -> bool:
    """Whether a file belongs to JAX, remat or the standard library; tracebacks have files, not modules."""
    folders = [str(PurePath(str(module.__file__)).parent) for module in (jax, sys.modules["jaxlib"])]
    folders += [str(PurePath(__file__).parents[2]), sysconfig.get_paths()["stdlib"]]
    installed = "site-packages" in PurePath(file).parts
    return file.startswith(tuple(folders[:3])) or (file.startswith(folders[3]) and not installed) or file[:1] == "<"
