"""The ways of torch_chains.py to train a model with less memory: torch.utils.checkpoint in its forms, and remat."""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import FunctionType

import torch
import torch._functorch.config
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import remat

__all__ = ["Way", "baselines", "by_remat", "compiled_baselines"]

aten = torch.ops.aten
ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
NAMES = ("mm", "bmm", "addmm", "convolution", *(f"_scaled_dot_product_{kernel}" for kernel in ATTENTION))
# What a selective checkpoint saves: products, convolutions and attention.
SAVED = [getattr(aten, name).default for name in NAMES if hasattr(aten, name)]


@dataclass
class Way:
    """A model that is trained in one way, and what was planned and measured of it."""

    name: str
    model: nn.Module
    whole_blocks: bool = True  # or choices inside of blocks
    budget: int | None = None
    beside: str = ""  # the way whose peak is the budget
    plan: object = None
    planning: float = 0.0  # seconds
    peak: int = 0
    times: list[float] | None = None
    gradients: str = ""
    buffers: bool = True
    context: object = nullcontext  # in which each step runs
    error: str = ""
    least: int = 0  # the smallest budget that works, where this one does not

    @property
    def is_ours(self):
        return self.budget is not None


def copy_of(model):
    """A copy with the same parameters (and their gradients), and buffers of its own."""
    return deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def baselines(case, quick):
    """Plain, and torch.utils.checkpoint over blocks, over groups of them, and with a choice of ops."""
    yield Way("plain", copy_of(case.model))
    yield _checkpointed(case, "per block", lambda i: True)
    for k in (2, 4) if quick else range(2, 7):
        yield _checkpointed(case, f"every {_ordinal(k)} block", lambda i, k=k: i % k == 0)
    for k in (4,) if quick else (3, 4, 6):
        yield _checkpointed(case, f"all but every {_ordinal(k)} block", lambda i, k=k: i % k != 0)
    if case.chained:
        for segments in _numbers(len(case.blocks), quick):
            yield _segmented(case, segments)
    contexts = partial(create_selective_checkpoint_contexts, SAVED)
    way = _checkpointed(case, "selective (SAC)", lambda i: True, context_fn=contexts)
    way.whole_blocks = False
    yield way
    for name, change in case.by_hand.items():
        way = Way(f"by hand: {name}", copy_of(case.model), whole_blocks=False)
        for block in case.blocks:
            change(way.model.get_submodule(block))
        yield way
    if hasattr(case.model, "gradient_checkpointing_enable"):
        model = copy_of(case.model)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        yield Way("its own gradient checkpointing", model)


def compiled_baselines(case, quick):
    """Plain, and torch.compile of the model: as it is, with its own memory budgets, and with checkpointed blocks."""
    yield Way("plain", copy_of(case.model))
    for budget in (None, 0.5, 0.1) if quick else (None, 0.7, 0.5, 0.3, 0.2, 0.1):
        name = "compiled" if budget is None else f"compiled, activation_memory_budget {budget}"
        context = partial(torch._functorch.config.patch, activation_memory_budget=1.0 if budget is None else budget)
        yield Way(name, Compiled(copy_of(case.model)), context=context, whole_blocks=False)
    way = _checkpointed(case, "compiled, checkpoint per block", lambda i: True)
    way.model = Compiled(way.model)
    yield way


class Compiled(nn.Module):
    """A model as compiled code of its own: the compiler would run that of another copy of the model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

        def run(*args, **kwargs):
            return model(*args, **kwargs)

        code = run.__code__.replace(co_name=f"run {id(self)}")
        self.run = torch.compile(FunctionType(code, run.__globals__, "run", None, run.__closure__))

    def forward(self, *args, **kwargs):
        return self.run(*args, **kwargs)


def by_remat(case, budget, name, beside="", compiled=False):
    """The model under a budget in bytes; a way with an error where remat refuses."""
    way = Way(name, copy_of(case.model), budget=budget, beside=beside)
    began = perf_counter()
    try:
        remat.auto_checkpoint(way.model, memory=budget, sample=case.sample, loss=case.loss, compile=compiled)
        way.plan = way.model.remat_plan
    except Exception as error:
        way.least = getattr(error, "minimum", 0)
        way.error = f"{type(error).__name__}: {' '.join(str(error).split())}"
    way.planning = perf_counter() - began
    return way


def _checkpointed(case, name, is_wrapped, **options):
    model = copy_of(case.model)
    for i, block in enumerate(case.blocks):
        module = model.get_submodule(block)
        if is_wrapped(i):
            module.forward = partial(checkpoint, module.forward, use_reentrant=False, **options)
    return Way(name, model)


def _segmented(case, segments):
    """The first block runs all of them by checkpoint_sequential, the others do nothing."""
    model = copy_of(case.model)
    blocks = [model.get_submodule(name) for name in case.blocks]
    forwards = [block.forward for block in blocks]

    def run(x, **arguments):
        functions = [partial(forward, **arguments) for forward in forwards]
        return checkpoint_sequential(functions, segments, x, use_reentrant=False)

    for block in blocks[1:]:
        block.forward = lambda x, **_: x
    blocks[0].forward = run
    return Way(f"sequential, {segments} segments", model)


def _numbers(blocks, quick):
    """Numbers of segments: all, or a few."""
    if not quick:
        return range(2, blocks + 1)
    few, number = [], 2
    while number < blocks:
        few.append(number)
        number = max(number + 1, round(1.8 * number))
    return few


def _ordinal(k):
    return {2: "2nd", 3: "3rd"}.get(k, f"{k}th")
