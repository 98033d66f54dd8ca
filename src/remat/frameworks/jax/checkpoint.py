"""Segments on JAX: `jax.checkpoint`, for functions that take and give anything.

In: a function and its arguments. Out: what it returns. The arrays among the arguments are traced; what else there is
stays as it is, inside the function as outside of it. What the function closes over is JAX's to find. There is nothing
to compare, to draw again or to stop early: a traced function is pure, and XLA leaves out what is not needed.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from remat.frameworks.jax.avals import differentiable, nbytes
from remat.frameworks.jax.ownership import is_tracing
from remat.frameworks.jax.partition import check_no_leaked_tracers, is_array, is_traceable, partition
from remat.frameworks.jax.policies import policy_of
from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import segment_pass
from remat.segments import CheckpointOptions, display_name, nested, nesting_depth

__all__ = ["checkpoint"]

_ARRAYS = inspect.Signature([inspect.Parameter("arrays", inspect.Parameter.VAR_POSITIONAL)])


def checkpoint(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CheckpointOptions,
    call: CallRecord | None = None,
) -> Any:
    """What `fn` returns; what its backward needs is not kept, unless its outputs are within the threshold.

    Where JAX traces nothing there is no gradient to come, and it is a plain call.
    """
    if call is not None:
        call.framework, call.steps = "jax", 1  # what is traced once may run any number of times, unseen
    policy = policy_of(options.policy)
    name, depth = display_name(fn), nesting_depth()
    with segment_pass(name, "forward", depth), nested(depth):
        if not is_tracing():
            return fn(*args, **kwargs)
        flat = _Flat(fn, name, args, kwargs)
        if options.threshold is None and not CheckpointProfiler.is_tracking():
            return flat.build(jax.checkpoint(flat, policy=policy)(*flat.arrays))
        return flat.build(_weighed(jax.make_jaxpr(flat)(*flat.arrays), flat.arrays, options.threshold, policy))


class _Flat:
    """A function of arrays alone, that gives a list of arrays; what else goes in and comes out is held here.

    It is a new one for each call, so that JAX does not take what it traced before, with what was closed over then.
    """

    def __init__(self, fn: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__wrapped__, self.__signature__ = fn, _ARRAYS  # errors of JAX name the function and its file by these
        self.arrays: list[Any] = []
        self._fn, self._given = fn, partition((args, kwargs), is_traceable, self.arrays, [])

    def __call__(self, *arrays: Any) -> list[Any]:
        """The arrays among the results."""
        args, kwargs = self._given(iter(arrays))
        found: list[Any] = []
        static_values: list[Any] = []
        self._results = partition(self._fn(*args, **kwargs), is_array, found, static_values)
        check_no_leaked_tracers(static_values, self.__name__)
        return found

    def build(self, arrays: list[Any]) -> Any:
        """The results with these arrays."""
        return self._results(iter(arrays))


def _weighed(program: ClosedJaxpr, args: list[Any], threshold: int | None, policy: Any) -> list[Any]:
    """What a program gives; it is recomputed if its outputs are larger than the threshold, which the profiler hears."""

    def run(consts: list[Any], *args: Any) -> list[Any]:
        return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, consts))(*args)  # type: ignore[no-any-return]

    consts = list(program.consts)
    if threshold is not None and sum(map(nbytes, program.out_avals)) <= threshold:
        return run(consts, *args)
    if CheckpointProfiler.is_tracking() and any(map(differentiable, [*map(jax.typeof, consts), *program.in_avals])):
        CheckpointProfiler.note(_not_kept(run, consts, args, len(program.out_avals)))
    return jax.checkpoint(run, policy=policy)(consts, *args)  # type: ignore[no-any-return]


def _not_kept(run: Callable[..., Any], consts: list[Any], args: list[Any], outs: int) -> int:
    """Bytes that plain differentiation would hold, beside what goes in and comes out."""

    def both(consts: list[Any], *args: Any) -> list[Any]:
        found, back = jax.vjp(run, consts, *args)
        return [*found, *jax.tree_util.tree_leaves(back)]

    jaxpr = jax.make_jaxpr(both)(consts, *args).jaxpr
    there = {id(var) for var in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars[:outs])}
    held = {id(var): var.aval for var in jaxpr.outvars[outs:] if not hasattr(var, "val")}
    return sum(nbytes(aval) for number, aval in held.items() if number not in there)
