"""Networks under a budget in bytes: what is kept and what is computed again is decided by a plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Never, TypeVar

from remat.errors import ProblemError
from remat.frameworks import framework_of_module
from remat.planners import Plan
from remat.problem import Chain, Graph
from remat.reporting.block_table import block_table
from remat.units import to_count

__all__ = ["LargestBatch", "StepCosts", "auto_checkpoint", "explain", "largest_batch", "measure_step"]

M = TypeVar("M")


class StepCosts(NamedTuple):
    """What one forward and backward took: the peak in bytes above the level before it, and seconds.

    In the peak are `outputs`: bytes of what a planned model returns, which the step holds until its end, as many
    callers do, and which are no part of the plan.
    """

    peak: int
    seconds: float
    outputs: int = 0


class LargestBatch(NamedTuple):
    """A batch size, and the plan that runs it inside of the memory."""

    size: int
    plan: Plan


def auto_checkpoint(
    model: M,
    *unnamed: Never,
    memory: int | float | str | None = None,
    sample: Any = None,
    blocks: str | Sequence[Any] | None = None,
    plan: Plan | None = None,
    loss: Callable[[Any], Any] | None = None,
    on_new_shape: str = "plan",
    optimizer: Any = None,
    inside_blocks: bool = True,
    compile: bool | Mapping[str, Any] = False,
) -> M:
    """The model, whose activations stay inside a budget: its blocks are kept, or computed again in the backward.

    The model itself is changed, as `gradient_checkpointing_enable` changes one: parameters, names, hooks, copies, files
    and optimizers stay as they are, only its blocks get a subclass of their class. Blocks are measured on the sample,
    planned for the least time, and the plan is tried: its measured peak is inside the budget, or an error says by how
    much it is not. Gradients are those of the plain model. A second call replaces the plan of the first.

    Args:
        model: A module of PyTorch.
        memory: The bytes that may be live above those at the call of the model, until the backward has ended, such as
            "8 GiB": not counted are parameters, their gradients, the optimizer's state and the batch. A number below 1
            is a fraction of what is free then; "auto" is all that the device has beside gradients and optimizer.
        sample: What the model is called with in training: a tuple of arguments, a dict of named ones, or one tensor.
            Without it the first call with gradients is the sample.
        blocks: What may be computed again: a list of modules by name, names of modules, or modules; without it the
            model's lists of repeated modules. "whole": the model is one graph of single operators (see the docs).
        plan: A plan that was made for this model before, `model.remat_plan`, instead of memory and sample.
        loss: The function of the model's output that is differentiated, so that the plan knows what it takes. Without
            it a loss in the output, or a cotangent like the output, is counted.
        on_new_shape: What to do when inputs of another shape come: "plan" for them, or raise an "error".
        optimizer: For memory="auto": the optimizer, whose state may still have to be made.
        inside_blocks: Whether a block may also keep a part of what its backward needs, and make the rest again.
        compile: Whether blocks are run as compiled code, each by itself (`torch.compile`); a dict has arguments for it.

    Returns:
        The model.

    Raises:
        ProblemError: If no blocks are found, or arguments contradict each other.
        InfeasibleError: If no plan fits; it names the least memory and the stage that needs it. On a GPU the backward
            of the first training step raises it, if the program takes more beside the model than the budget leaves.
    """
    framework: Any = _framework(model, "auto_checkpoint")
    _check_request(memory, plan, on_new_shape, unnamed)
    how = plan, loss, on_new_shape, optimizer, bool(inside_blocks), compile
    planned: M = framework.auto_checkpoint(model, memory, sample, blocks, *how)
    return planned


def _check_request(memory: object, plan: object, on_new_shape: object, unnamed: tuple[Never, ...]) -> None:
    if unnamed:
        raise ProblemError("name the arguments after the model: remat.auto_checkpoint(model, memory=..., sample=...)")
    if (memory is None) == (plan is None):
        raise ProblemError("give auto_checkpoint its budget, memory=, or a plan, plan=: one of the two")
    if plan is not None and not isinstance(plan, Plan):
        raise ProblemError(f"plan must be a Plan, such as model.remat_plan, not {plan!r:.60}")
    if on_new_shape not in ("plan", "error"):
        raise ProblemError(f'on_new_shape must be "plan" or "error", not {on_new_shape!r:.40}')


def largest_batch(
    model: Any,
    make_batch: Callable[[int], Any],
    *,
    memory: int | float | str,
    blocks: str | Sequence[Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    least: int = 1,
    most: int = 65_536,
) -> LargestBatch:
    """The largest batch size for which the activations of a model fit a budget, and the plan that does it.

    Batches of some sizes are measured, one block at a time; the model stays as it is.

    Args:
        model: A module of PyTorch.
        make_batch: A function of the batch size that returns what the model is called with, as `sample` above.
        memory: As in `auto_checkpoint`.
        blocks: As in `auto_checkpoint`.
        loss: As in `auto_checkpoint`.
        least: The smallest size that is tried: batch norm, for one, does not train on a batch of one.
        most: The largest size that is tried.

    Returns:
        The size and the plan, which `auto_checkpoint(model, plan=...)` takes.

    Raises:
        InfeasibleError: If the smallest batch does not fit.
    """
    framework: Any = _framework(model, "largest_batch")
    smallest = to_count(least, "least", least=1)
    limit = to_count(most, "most", least=smallest)
    return LargestBatch(*framework.largest_batch(model, make_batch, memory, blocks, loss, smallest, limit))


def measure_step(
    model: Any, sample: Any, *, loss: Callable[[Any], Any] | None = None, plain: bool = False
) -> StepCosts | None:
    """What one forward and backward of a model take; None if there is not enough memory. Nothing is left of it.

    Args:
        model: A module of PyTorch.
        sample: As in `auto_checkpoint`.
        loss: As in `auto_checkpoint`.
        plain: Whether the blocks of a model after `auto_checkpoint` are to be recorded all the same.
    """
    costs = _framework(model, "measure_step").measure_step(model, sample, loss, plain)
    return None if costs is None else StepCosts(*costs)


def explain(subject: Any, *, contents: bool = False) -> str:
    """What a plan does with each block, what that costs, and where the peak is.

    Args:
        subject: A model after `auto_checkpoint`, or a plan for a chain or for the graph of a step.
        contents: Whether to list, for blocks that keep a part, which results of operators are kept and made again.

    Returns:
        A text of a few lines.
    """
    plan = subject if isinstance(subject, Plan) else getattr(subject, "remat_plan", None)
    if plan is None and hasattr(type(subject), "remat_plan"):
        raise ProblemError(
            f"this {type(subject).__name__} is not planned yet: call it once with gradients, or give auto_checkpoint "
            "sample=, what it is called with"
        )
    if not isinstance(plan, Plan) or not isinstance(plan.problem, Chain | Graph):
        raise ProblemError(
            "explain takes a model after remat.auto_checkpoint, or a plan for a chain or a graph, not "
            f"{type(subject).__name__}"
        )
    return block_table(plan, contents=contents, given=getattr(subject, "remat_budget", None))


def _framework(model: Any, what: str) -> Any:
    framework = framework_of_module(model)
    if framework is None or not hasattr(framework, what):
        raise ProblemError(f"{what} takes a module of PyTorch, not {type(model).__name__}")
    return framework
