"""Models under a budget in bytes: a plan decides what is kept and what is recomputed."""

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
    """What one forward and backward took: the peak in bytes above those live before it, and the seconds.

    The peak includes `outputs`, the bytes of what a planned model returns. The step holds them until its end, as many
    callers do; the plan does not count them.
    """

    peak: int
    seconds: float
    outputs: int = 0


class LargestBatch(NamedTuple):
    """A batch size, and the plan that runs it inside the memory."""

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
    """Keep the model's activations inside a budget: each block is kept, or recomputed in the backward.

    This changes the model itself, as `gradient_checkpointing_enable` does: only its blocks get a subclass of their
    class; parameters, names, hooks, copies, saved files and optimizers stay valid. The blocks are measured on the
    sample and planned for the least time, and the plan is tried: its measured peak is inside the budget, or an error
    says by how much it is not. Gradients are those of the plain model. A second call replaces the first plan.

    Args:
        model: A PyTorch module.
        memory: The bytes, such as "8 GiB", that may be live above those at the call of the model, until its backward
            has ended. Parameters, their gradients, the optimizer's state and the batch do not count. A number below 1
            is a fraction of what is free at the call; "auto" is everything that gradients and the optimizer leave free.
        sample: What the model is called with in training: a tuple of arguments, a dict of keyword arguments, or one
            tensor. Without it, the first call with gradients is the sample.
        blocks: What may be recomputed: the name of a list of modules, names of modules, or modules; by default the
            model's lists of repeated modules. "whole" plans the model as one graph of single operators (see the docs).
        plan: A plan made earlier for this model, `model.remat_plan`, instead of memory and sample.
        loss: The function of the model's output that is differentiated, so that the plan includes its cost. Without
            it, the plan counts a loss in the output, or a cotangent like the output.
        on_new_shape: What to do for inputs of a new shape: "plan" for them, or raise an "error".
        optimizer: For memory="auto": the optimizer, whose state may not have been allocated yet.
        inside_blocks: Whether a block may also keep part of its residuals and recompute the rest.
        compile: Whether to compile each block separately (`torch.compile`); a dict is passed on as its arguments.

    Returns:
        The model.

    Raises:
        ProblemError: If no blocks are found, or arguments contradict each other.
        InfeasibleError: If no plan fits; it names the least memory and the stage that needs it. On a GPU, the backward
            of the first training step raises it if the rest of the program needs more than the budget leaves.
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
        raise ProblemError("give auto_checkpoint either a budget, memory=, or a plan, plan=")
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
    """The largest batch size whose activations fit a budget, and the plan that runs it.

    Batches of a few sizes are measured, one block at a time; the model is not changed.

    Args:
        model: A PyTorch module.
        make_batch: A function of the batch size that returns what the model is called with, as `sample` above.
        memory: As in `auto_checkpoint`.
        blocks: As in `auto_checkpoint`.
        loss: As in `auto_checkpoint`.
        least: The smallest size to try; batch norm, for example, cannot train on a batch of one.
        most: The largest size to try.

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
    """The costs of one forward and backward of a model; None if memory runs out. The model is left as it was.

    Args:
        model: A PyTorch module.
        sample: As in `auto_checkpoint`.
        loss: As in `auto_checkpoint`.
        plain: Whether to record all blocks of a model after `auto_checkpoint`, whatever its plan says.
    """
    costs = _framework(model, "measure_step").measure_step(model, sample, loss, plain)
    return None if costs is None else StepCosts(*costs)


def explain(subject: Any, *, contents: bool = False) -> str:
    """What a plan does with each block, what that costs, and where the peak is.

    Args:
        subject: A model after `auto_checkpoint`, or a plan for a chain or for the graph of a step.
        contents: Whether to list which operator results are kept and which recomputed, for blocks that keep some.

    Returns:
        A text of a few lines.
    """
    plan = subject if isinstance(subject, Plan) else getattr(subject, "remat_plan", None)
    if plan is None and hasattr(type(subject), "remat_plan"):
        raise ProblemError(
            f"this {type(subject).__name__} is not planned yet: call it once with gradients, or give auto_checkpoint "
            "a sample= of what it is called with"
        )
    if not isinstance(plan, Plan) or not isinstance(plan.problem, Chain | Graph):
        is_keras = any(base.__module__.startswith("keras.") for base in type(subject).__mro__)
        if is_keras and plan is None:
            raise ProblemError("for a Keras model, write remat.keras.explain(model)")
        raise ProblemError(
            "explain takes a model after remat.auto_checkpoint, or a plan for a chain or a graph, not "
            f"{type(subject).__name__}"
        )
    return block_table(plan, contents=contents, given=getattr(subject, "remat_budget", None))


def _framework(model: Any, what: str) -> Any:
    framework = framework_of_module(model)
    if framework is None or not hasattr(framework, what):
        raise ProblemError(f"{what} takes a PyTorch module, not {type(model).__name__}")
    return framework
