"""Segments on JAX: `jax.checkpoint` for functions that take and return anything.

In: a function and its arguments. Out: what it returns. The arrays among the arguments are traced; other values are
static, and the function receives the same objects. JAX itself finds what the function closes over. Unlike on other
frameworks, nothing has to be compared, replayed or stopped early: a traced function is pure, and XLA removes what is
not needed. A policy, one of JAX's own or its name, says what is kept nevertheless.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from remat.errors import ProblemError
from remat.frameworks.jax.avals import (
    Array,
    ClosedJaxpr,
    differentiable,
    has_loop,
    is_tracing,
    jax_checkpoint,
    jaxpr_as_fun,
    nbytes,
)
from remat.frameworks.jax.loops.tape_contents import numbered, segment_contents
from remat.frameworks.jax.partition import check_no_leaked_tracers, is_array, is_traceable, partition
from remat.frameworks.jax.segments.cpu_scheduler import is_compiled, is_for_cpu, warn_once
from remat.frameworks.jax.segments.kept_values import run_keeping
from remat.frameworks.jax.segments.looped_segment import LoopedSegment
from remat.frameworks.jax.segments.nnx_modules import WithoutModules
from remat.frameworks.jax.transforms.mutable_arrays import without_refs
from remat.frameworks.jax.transforms.primitives import call as call_function
from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import segment_pass, unprofiled
from remat.pytree import Leaf, PyTree
from remat.segments import CheckpointOptions, display_name, nested, nesting_depth

__all__ = ["FlatFunction", "checkpoint"]

_ANY_ARRAYS = inspect.Signature([inspect.Parameter("arrays", inspect.Parameter.VAR_POSITIONAL)])


def checkpoint(
    fn: Callable[..., Any],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    options: CheckpointOptions,
    call: CallRecord | None = None,
) -> PyTree:
    """What `fn` returns; its residuals are not kept, unless its outputs are within the threshold.

    If JAX is not tracing, no gradient can follow, and it is a plain call.
    """
    if call is not None:
        call.framework, call.steps = "jax", 1  # the traced code may run any number of times, unseen
    policy = policy_of(options.policy)
    name, depth = display_name(fn), nesting_depth()
    if call is not None and is_tracing():
        name = numbered(name, (args, kwargs))
    with segment_pass(name, "forward", depth), nested(depth):
        if not is_tracing():
            return fn(*args, **kwargs)
        stateful = WithoutModules(fn, args, kwargs)
        if stateful.modules:
            arguments = stateful.arrays, stateful.others()
            result, arrays = checkpoint(stateful, arguments, {}, options, call)
            stateful.update(arrays)
            return result
        flat = FlatFunction(fn, name, args, kwargs)
        program = without_refs(jax.make_jaxpr(flat)(*flat.arrays))
        if call is not None:
            with unprofiled():
                call.note_contents(segment_contents(name, program, flat.arrays))
        if options.memory is not None:
            return flat.build(run_keeping(options.memory, program, flat.arrays))
        if options.threshold is None and not CheckpointProfiler.is_tracking():
            return flat.build(_checkpointed(program, flat, policy))
        return flat.build(_checkpoint_above(options.threshold, program, flat, policy))


def _checkpointed(program: ClosedJaxpr, flat: "FlatFunction", policy: Any) -> list[Array]:
    """The results of a program that the backward recomputes, with a warning or a looped segment if XLA undoes that."""
    if is_compiled():
        if is_for_cpu():
            warn_once()
        elif policy is None and has_loop(program):
            return call_function(LoopedSegment(program), [*program.consts, *flat.arrays])
    return _checkpoint_above(None, program, flat, policy)


class FlatFunction:
    """A function of arrays that returns a list of arrays; static arguments and results are attributes.

    Each call makes a new one, so that JAX does not reuse an older trace with the values closed over then.
    """

    def __init__(self, fn: Callable[..., Any], name: str, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__wrapped__, self.__signature__ = fn, _ANY_ARRAYS  # by these, JAX's errors name the function and its file
        self.arrays: list[Array] = []
        self._fn, self._build_args = fn, partition((args, kwargs), is_traceable, self.arrays, [])

    def __call__(self, *arrays: Array) -> list[Array]:
        """The arrays among the results."""
        args, kwargs = self._build_args(iter(arrays))
        results: list[Array] = []
        static_values: list[Leaf] = []
        self._build_results = partition(self._fn(*args, **kwargs), is_array, results, static_values)
        check_no_leaked_tracers(static_values, self.__name__)
        return results

    def build(self, arrays: list[Array]) -> PyTree:
        """The results, rebuilt with these arrays."""
        return self._build_results(iter(arrays))


def _checkpoint_above(threshold: int | None, program: ClosedJaxpr, flat: "FlatFunction", policy: Any) -> list[Array]:
    """The results of a function with this program, checkpointed if they take more bytes than the threshold."""

    def run(consts: list[Array], *args: Array) -> list[Array]:
        return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, consts))(*args)  # type: ignore[no-any-return]

    run.__name__ = run.__qualname__ = flat.__name__  # by which JAX's own tools show it
    consts, args = list(program.consts), flat.arrays
    if threshold is not None and sum(map(nbytes, program.out_avals)) <= threshold:
        return run(consts, *args)
    if CheckpointProfiler.is_tracking() and any(map(differentiable, [*map(jax.typeof, consts), *program.in_avals])):
        CheckpointProfiler.note(segment_contents("", program, args).dropped)
    return jax_checkpoint(run, policy=policy)(consts, *args)  # type: ignore[no-any-return]


def policy_of(policy: Any) -> PyTree:
    """The requested policy, given as a function or by its name in jax.checkpoint_policies."""
    if policy is None:
        return None
    functions = {
        name: function
        for name, function in vars(jax.checkpoint_policies).items()
        if callable(function) and not name.startswith("_")
    }
    policies = {name: function for name, function in functions.items() if _is_policy(function)}
    makers = functions.keys() - policies.keys()
    for name in makers:
        if policy == name or policy is functions[name]:
            raise ProblemError(
                f"policy is {name}, which makes policies and is not one: give jax.checkpoint_policies.{name}(...)"
            )
    if not isinstance(policy, str):
        return policy
    if policy not in policies:
        raise ProblemError(
            f"JAX has no policy {policy!r:.60}; it has {', '.join(sorted(policies))}. Or give a function, "
            'such as jax.checkpoint_policies.save_only_these_names("a")'
        )
    return policies[policy]


def _is_policy(function: Any) -> bool:
    """Whether a function is a policy rather than one that makes policies."""
    # JAX does not distinguish them; a policy takes (prim, *args, **params) for any operation.
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
