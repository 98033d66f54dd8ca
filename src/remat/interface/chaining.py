"""Chains: functions called one after another, where a plan decides what is kept and what is recomputed."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from remat.errors import ProblemError
from remat.execute.nested_ranges import Item, Range, nested_ranges
from remat.execute.retained_peak import runs
from remat.frameworks import Framework, find_framework, framework_of_module
from remat.interface.chain_plans import chain_plan, plan_with_retention
from remat.interface.checkpointing import check_callable, run_segment
from remat.memory_meter import fraction_of_free
from remat.planners import Plan
from remat.planners import plan as make_plan
from remat.problem import Chain
from remat.profiling.profiler import recorded_call
from remat.segments import CheckpointOptions
from remat.units import to_bytes

__all__ = ["chain", "measure"]

_RECOMPUTED = CheckpointOptions()
_RECORDED = CheckpointOptions(threshold=2**62, once=True)


def measure(stages: Any, sample: Any) -> Chain:
    """Measure the seconds and bytes of each stage on an input like `sample`, by running each stage alone.

    Statistics, generators and gradients are afterwards as before. On PyTorch, a stage that writes into its input is
    joined with the stage before it into one `Stage`. On JAX, stages are compiled, and timed if `sample` is a concrete
    array; inside a trace, times are estimated from operation counts.

    Args:
        stages: Functions or modules of one argument; each takes what the one before returns. Or a PyTorch model with
            a forward of its own: its blocks are the stages, and so is what it computes around them. A plan for that
            chain is run by `auto_checkpoint(model, plan=...)`.
        sample: The input of the first stage; for a model what it is called with, as in `auto_checkpoint`.

    Returns:
        The chain, which can be planned, saved and printed.

    Raises:
        ProblemError: If a stage is not callable, or no blocks are found in a model.
    """
    framework: Any = None if isinstance(stages, Iterable) else framework_of_module(stages)
    if hasattr(framework, "chain_of_model"):
        chain: Chain = framework.chain_of_model(stages, sample)
        return chain
    functions = _functions(stages, sample, "remat.measure(stages, sample)")
    return find_framework(sample, using=functions).measure_chain(functions, sample)


def chain(
    stages: Iterable[Callable[[Any], Any]],
    x: Any,
    *,
    memory: int | str | float | None = None,
    plan: Plan | None = None,
) -> Any:
    """Call the stages one after another, starting from `x`, and return what the last one returns.

    The plan decides which stages are recorded and which run without a tape and are recomputed in the backward, possibly
    several times, as nested segments. Gradients are those of the plain calls.

    Args:
        stages: Functions or modules of one argument.
        x: The input of the first stage: an array, or arrays in any nesting of containers.
        memory: The bytes that may be live above those at the call until the backward has ended, such as "2 GiB", or a
            fraction of the free bytes, such as 0.9. The stages are measured and planned for the least time, once for
            the same stages and budget on equal inputs in the same modes (training, autocast): pass the same objects
            in every call, not new lambdas. A fraction is rounded down by up to 3 %, so that the plan does not change
            when a little more or less memory is free. Autograd frees its graphs only at the end of the backward,
            which the plan allows for. On JAX, the plan keeps to the budget, but XLA may take more, above all on the
            CPU, where it undoes recomputation.
        plan: A plan for a `Chain` of as many stages, instead of `memory`.

    Returns:
        The result of the last stage.

    Raises:
        ProblemError: If neither or both of `memory` and `plan` are given, or the plan is for something else.
        InfeasibleError: If no plan fits; it names the least memory and the stage that needs it.

    Example:
        >>> import autograd.numpy as np, remat
        >>> from autograd import grad
        >>> plan = remat.plan(remat.Chain([remat.Stage()] * 4), memory=8)
        >>> print(f"{grad(lambda x: chain([np.sin] * 4, x, plan=plan))(0.5):.6f}")
        0.629335
    """
    functions = _functions(stages, x, "remat.chain(stages, x, memory=...)")
    if (memory is None) == (plan is None):
        raise ProblemError("give a chain either a budget, memory=, or a plan, plan=")
    with recorded_call("chain", None) as call:
        framework = find_framework(x, using=functions)
        if call is not None:
            call.framework, call.steps = framework.TRAITS.name, len(functions)
        if plan is None:
            plan = _plan_within(framework, functions, x, memory)
        for function in functions if plan is None else _planned(functions, plan, framework):
            x = function(x)
        return x


def _plan_within(
    framework: Framework, functions: Sequence[Callable[[Any], Any]], x: Any, memory: int | str | float | None
) -> Plan | None:
    """The plan within a budget, or None if nothing is differentiated."""
    if isinstance(memory, float):
        budget = fraction_of_free(memory, lambda: framework.free_bytes(x))
        budget -= budget % (1 << max(0, budget.bit_length() - 6))
    else:
        budget = to_bytes(memory, "memory")
    key = framework.chain_key(functions, x)
    if key is None:
        return None
    make = plan_with_retention if framework.TRAITS.frees_graphs_at_the_end else make_plan
    return chain_plan(functions, key, budget, lambda: framework.measure_chain(functions, x), make)


def _planned(functions: Sequence[Callable[[Any], Any]], plan: Plan, framework: Framework) -> list[Callable[[Any], Any]]:
    """The functions that run a plan when they are called one after another."""
    if not isinstance(plan, Plan) or not isinstance(plan.problem, Chain):
        planned = f"a {type(plan.problem).__name__} of {plan.problem.title}" if isinstance(plan, Plan) else repr(plan)
        raise ProblemError(f"the plan is for {planned:.60}; this is a chain of {len(functions)} stages")
    counts = [stage.functions for stage in plan.problem.stages]
    if sum(counts) != len(functions):
        joined = f" with {sum(counts)} functions" if sum(counts) != len(counts) else ""
        raise ProblemError(
            f"the plan is for a Chain of {plan.problem.title}{joined}; this is a chain of {len(functions)} stages"
        )
    rest = iter(functions)
    joined_stages = [_joined([*islice(rest, count)]) for count in counts]
    items = nested_ranges(plan.schedule, len(counts))
    return _segments(joined_stages, items, in_runs=framework.TRAITS.frees_graphs_at_the_end)


def _joined(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """The functions composed into one."""
    if len(functions) == 1:
        return functions[0]

    def together(x: Any) -> Any:
        for function in functions:
            x = function(x)
        return x

    return together


def _segments(
    functions: Sequence[Callable[[Any], Any]], items: Sequence[Item], *, in_runs: bool
) -> list[Callable[[Any], Any]]:
    """The functions to call one after another: single stages, and segments of several.

    With `in_runs`, consecutive recorded stages also form a segment, which keeps its tape until it is pulled back.
    """
    if in_runs:
        return [_segment(functions, part, in_runs=True) for part in runs(items)]
    return [_segment(functions, item, in_runs=False) if isinstance(item, Range) else functions[item] for item in items]


def _segment(functions: Sequence[Callable[[Any], Any]], part: Range, *, in_runs: bool) -> Callable[[Any], Any]:
    recorded = not part.items
    inside = tuple(functions[part.start : part.stop] if recorded else _segments(functions, part.items, in_runs=in_runs))

    def stages(x: Any) -> Any:
        for function in inside:
            x = function(x)
        return x

    last = f" to {part.stop - 1}" if part.stop - part.start > 1 else ""
    vars(stages)["calls_only"] = functions[part.start : part.stop]
    stages.__qualname__ = f"stages {part.start}{last}" if last else f"stage {part.start}"
    return lambda x: run_segment("checkpoint", stages, (x,), {}, _RECORDED if recorded else _RECOMPUTED)


def _functions(stages: Iterable[Callable[[Any], Any]], x: Any, call: str) -> list[Callable[[Any], Any]]:
    """The stages as a list; raise a ProblemError that shows the correct `call` if `x` has them."""
    given = x if isinstance(x, Iterable) else (x,)
    if hasattr(stages, "shape") and any(map(callable, given)):
        raise ProblemError(f"the stages come before their input: write {call}")
    functions = list(stages)
    for function in functions:
        check_callable(function)
    return functions
