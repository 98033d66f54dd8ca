"""Models under a budget in bytes: `auto_checkpoint` and `largest_batch` on PyTorch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from remat.errors import InfeasibleError, ProblemError
from remat.frameworks.torch.meter import devices_of
from remat.frameworks.torch.models.compiled_blocks import CompileOptions
from remat.frameworks.torch.models.find_blocks import WHOLE, find_blocks
from remat.frameworks.torch.models.measure_model import MeasuredModel, measure_model
from remat.frameworks.torch.models.model_budget import ModelBudget
from remat.frameworks.torch.models.model_trial import Trial
from remat.frameworks.torch.models.plan_agreement import groups_of_model, groups_waited_for, largest, of_first_process
from remat.frameworks.torch.models.planned_blocks import plain_module, to_restore
from remat.frameworks.torch.models.planned_model import PlannedModel, attach, planned_model
from remat.planners import Plan
from remat.problem import Chain
from remat.units import bytes_text

__all__ = ["auto_checkpoint", "chain_of_model", "largest_batch", "measure_step"]

Blocks = str | Sequence[str | nn.Module] | None
Loss = Callable[[Any], Tensor]


def auto_checkpoint(
    model: nn.Module,
    memory: Any,
    sample: Any,
    blocks: Blocks,
    plan: Plan | None,
    loss: Loss | None,
    on_new_shape: str,
    optimizer: Any,
    inside_blocks: bool,
    compiled: bool | Mapping[str, Any],
) -> nn.Module:
    """The model itself, whose blocks run according to a plan from now on."""
    if hasattr(model, "_orig_mod"):
        raise ProblemError(
            "auto_checkpoint takes the model before torch.compile, which hides its blocks: plan it, then compile it, "
            "or compile its blocks"
        )
    budget = None if plan is not None else ModelBudget.parse(memory, optimizer)
    call = None if sample is None else call_of(sample)
    options = _compile_options(compiled)
    may_be_whole = inside_blocks and options is None and not groups_of_model(model)
    if blocks == WHOLE and not may_be_whole:
        raise ProblemError(
            'blocks="whole" plans single operators of a model in one process: not with compile=, with '
            "inside_blocks=False, or for a sharded model. Name its blocks"
        )
    found = find_blocks(model, blocks, whole=may_be_whole)
    return planned_model(model, found, call, budget, plan, loss, on_new_shape, inside_blocks, options)


def _compile_options(compiled: bool | Mapping[str, Any]) -> CompileOptions | None:
    if isinstance(compiled, bool):
        return () if compiled else None
    unknown = set(compiled) - set(signature(torch.compile).parameters) | {"model"} & set(compiled)
    if unknown:
        raise ProblemError(f"compile={compiled!r:.60}: {', '.join(sorted(unknown))} is no argument of torch.compile")
    return tuple((name, tuple(value.items()) if isinstance(value, dict) else value) for name, value in compiled.items())


def measure_step(model: nn.Module, sample: Any, loss: Loss | None, plain: bool) -> tuple[int, float, int] | None:
    """The peak and the seconds of one forward and backward, and the bytes of the peak that no plan counts.

    Those are the outputs of the model that its graph does not hold. None if memory does not suffice.
    """
    args, kwargs = call_of(sample)
    devices = devices_of(args, kwargs, list(model.parameters()))
    trial, run = Trial(model, devices), partial(model, *args, **kwargs)
    last = getattr(vars(model).get("_remat_forward"), "last", None)
    outputs = 0 if last is None else last.outputs
    planned = vars(model).pop("_remat_forward", None) if plain else None
    try:
        return trial.run(run, loss).peak, trial.seconds_of(run, loss), outputs
    except torch.cuda.OutOfMemoryError:
        return None
    finally:
        if planned is not None:
            vars(model)["_remat_forward"] = planned


def chain_of_model(model: nn.Module, sample: Any) -> Chain:
    """A model's blocks, and the code around them, as a chain of stages, measured on a sample."""
    found, call = find_blocks(model), call_of(sample)
    with _attached(model, found) as token:
        groups = groups_waited_for(model, token, lambda: _run(model, call))
        return _measured(model, found, token, call, None, groups).chain


def largest_batch(
    model: nn.Module,
    make_batch: Callable[[int], Any],
    memory: Any,
    blocks: Blocks,
    loss: Loss | None,
    least: int,
    most: int,
) -> tuple[int, Plan]:
    """The largest batch size from `least` to `most` for which there is a plan, and that plan.

    The least memory of a batch is nearly linear in its size. So the next size to measure is where the line through two
    known sizes meets the budget; or the middle, if the last guess did not halve the interval.
    """
    found = find_blocks(model, blocks)
    devices = devices_of(list(model.parameters()))
    sizes: dict[int, MeasuredModel] = {}  # of batches that fit
    known: dict[int, int] = {}  # the least memory of batches, whether they fit or not
    low, high, above = least - 1, most + 1, 0
    guess, between = least, 4 * (high - low)
    with _attached(model, found) as token:
        groups = groups_waited_for(model, token, lambda: _run(model, call_of(make_batch(least))))
        budget = -largest([-ModelBudget.parse(memory, None).bytes(model, devices)], groups)[0]
        while high - low > 1:
            try:
                measured = _measured(model, found, token, call_of(make_batch(guess)), loss, groups)
                needed = _least_memory(measured)
            except torch.cuda.OutOfMemoryError:
                needed = 2**62
            if needed <= budget:
                low, sizes[guess] = guess, measured
            else:
                high, above = guess, needed
            known[guess] = needed
            is_halved, between = 2 * (high - low) <= between, high - low
            guess = _next(low, high, budget, known) if is_halved else max(low + 1, min((low + high) // 2, 2 * low))
    if low not in sizes:
        raise InfeasibleError(
            f"a batch of {least} needs {bytes_text(above, up=True)} at least, and there are {bytes_text(budget)}",
            above,
            "bytes",
        )
    found_one = sizes[low]
    return low, found_one.plan(budget - found_one.outputs)


def _run(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, kwargs = call
    return model(*args, **kwargs)


def _next(low: int, high: int, budget: int, known: dict[int, int]) -> int:
    """The next size to try, between one that fits and one that does not."""
    other = high if high in known else max((size for size in known if size < low), default=None)
    if low not in known or other is None:
        return max(low + 1, min(2 * low, high - 1))
    per_item = (known[other] - known[low]) / (other - low)
    guess = low + int((budget - known[low]) / per_item) if per_item > 0 else 2 * low
    return max(low + 1, min(guess, high - 1))


def _least_memory(measured: MeasuredModel) -> int:
    """The least bytes in which a plan for the model, and its outputs, fit."""
    try:
        least = measured.plan(1).peak
    except InfeasibleError as error:
        least = int(error.minimum)
    return least + measured.outputs


def _measured(
    model: nn.Module,
    blocks: dict[str, nn.Module],
    token: str,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    loss: Loss | None,
    groups: Sequence[Any],
) -> MeasuredModel:
    args, kwargs = call
    devices = devices_of(args, kwargs, list(model.parameters()))
    run = partial(model, *args, **kwargs)
    measured = measure_model(model, run, blocks, token, loss, devices, groups=groups, inside=True)
    return of_first_process(measured, groups)


@contextmanager
def _attached(model: nn.Module, blocks: dict[str, nn.Module]) -> Iterator[str]:
    """A context in which calls of a model's blocks can be measured; it yields the token that the blocks share."""
    restore = to_restore(model)
    planned = PlannedModel(blocks, None, None, None, "plan", False)
    try:
        for module in model.modules():
            plain_module(module)
        attach(model, planned, blocks, whole=False)
        yield planned.token
    finally:
        restore()


def call_of(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a sample represents: a tuple has positional ones, a dict named ones, anything else is one."""
    if isinstance(sample, tuple | list):
        return tuple(sample), {}
    if isinstance(sample, dict) or (hasattr(sample, "keys") and not isinstance(sample, Tensor)):
        return (), {name: sample[name] for name in sample.keys()}  # noqa: SIM118 (a BatchEncoding iterates otherwise)
    return (sample,), {}
