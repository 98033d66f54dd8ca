"""Chains: functions one after another, of which a plan says what is kept and what is computed again."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from remat.errors import ProblemError
from remat.execute.nested_ranges import Item, Range, nested_ranges
from remat.frameworks import find_framework
from remat.interface.checkpointing import check_callable, checkpoint
from remat.planners import Plan
from remat.planners import plan as make_plan
from remat.problem import Chain
from remat.profiling.profiler import recorded_call

__all__ = ["chain", "measure"]


def measure(stages: Iterable[Callable[[Any], Any]], sample: Any) -> Chain:
    """The `Chain` of stages on an input like `sample`: seconds and bytes of each, measured by running it alone.

    Nothing is changed by it: statistics, generators and gradients are afterwards as before. On PyTorch.

    Args:
        stages: Functions or modules of one argument, each of which takes what the one before returns.
        sample: The input of the first one.

    Returns:
        The chain, to be planned, saved and printed.

    Raises:
        ProblemError: If a stage is not callable, or the framework of `sample` cannot measure chains.
    """
    functions = _functions(stages)
    framework = find_framework(sample, using=functions)
    if not hasattr(framework, "measure_chain"):
        raise ProblemError(f"chains are measured on PyTorch so far, not on {framework.TRAITS.title}: give a plan")
    measured: Chain = framework.measure_chain(functions, sample)
    return measured


def chain(
    stages: Iterable[Callable[[Any], Any]], x: Any, *, memory: int | str | None = None, plan: Plan | None = None
) -> Any:
    """What the last stage returns, when each stage is called with what the one before returned; the first with `x`.

    Stages are recorded, or run without a tape and computed again in the backward, also several times, as the plan has
    it: as segments inside segments. Gradients are those of the plain calls.

    Args:
        stages: Functions or modules of one argument.
        x: The input of the first one, an array or any nesting of containers with arrays.
        memory: The bytes that may be live above those at the call until the backward has ended, such as "2 GiB": the
            stages are measured, and planned for the least time (PyTorch). That is done in every call: in a training
            loop measure and plan once, and give the plan.
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
    functions = _functions(stages)
    if (memory is None) == (plan is None):
        raise ProblemError("give a chain its budget, memory=, or a plan, plan=: one of the two")
    if isinstance(memory, float):
        raise ProblemError(f'memory={memory!r}: the budget of a chain is bytes, such as "2 GiB", and no fraction yet')
    if plan is None:
        plan = make_plan(measure(functions, x), memory)
    if not isinstance(plan, Plan) or not isinstance(plan.problem, Chain) or plan.problem.units != len(functions):
        planned = f"a {type(plan.problem).__name__} of {plan.problem.title}" if isinstance(plan, Plan) else repr(plan)
        raise ProblemError(f"the plan is for {planned:.60}; this is a chain of {len(functions)} stages")
    with recorded_call("chain", None) as call:
        if call is not None:
            call.framework, call.steps = find_framework(x, using=functions).TRAITS.name, len(functions)
        for function in _segments(functions, nested_ranges(plan.schedule, len(functions))):
            x = function(x)
        return x


def _segments(functions: Sequence[Callable[[Any], Any]], items: Sequence[Item]) -> list[Callable[[Any], Any]]:
    """The functions to call one after another: stages themselves, and segments of several."""
    return [_segment(functions, item) if isinstance(item, Range) else functions[item] for item in items]


def _segment(functions: Sequence[Callable[[Any], Any]], part: Range) -> Callable[[Any], Any]:
    inside = tuple(_segments(functions, part.items))

    def stages(x: Any) -> Any:
        for function in inside:
            x = function(x)
        return x

    last = f" to {part.stop - 1}" if part.stop - part.start > 1 else ""
    stages.__qualname__ = f"stages {part.start}{last}" if last else f"stage {part.start}"
    return lambda x: checkpoint(stages, x)


def _functions(stages: Iterable[Callable[[Any], Any]]) -> list[Callable[[Any], Any]]:
    functions = list(stages)
    for function in functions:
        check_callable(function)
    return functions
