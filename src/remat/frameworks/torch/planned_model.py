"""A model under a budget: measured, planned, tried, and run by the plan, for each shape of its inputs.

Rule. Plans are for the shapes, dtypes and devices of a model's inputs, its mode (`train` or `eval`), the bytes of its
parameters and of those that want gradients, and autocast. A plan is also used for inputs that are smaller by no more
than a fifth in all, which need less; for others a new one is made at their first call, from these inputs, or an error
is raised. The last KEPT plans are held.

A model that is sharded (FSDP2) is measured by calls of it, in all processes at once, and has one plan for all shapes
and processes (plan_agreement.py).

A plan is tried on the sample before it is used (plan_trials.py). What is measured and tried leaves no trace in the
model.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

from remat.errors import InfeasibleError, ProblemError
from remat.execute.recomputation import is_recomputing
from remat.frameworks.torch.collectives import is_single_process
from remat.frameworks.torch.compiled_blocks import CompileOptions, compiled_around_blocks
from remat.frameworks.torch.first_training_step import FirstTrainingStep
from remat.frameworks.torch.fsdp import is_sharded, sharded_modules_of
from remat.frameworks.torch.functorch import in_transform
from remat.frameworks.torch.graph import has_saved_tensor_hooks
from remat.frameworks.torch.input_shapes import InputShapes
from remat.frameworks.torch.known_reach import ReachCache
from remat.frameworks.torch.measure_model import measure_model
from remat.frameworks.torch.meter import CudaMeter, cuda_of, devices_of
from remat.frameworks.torch.model_budget import ModelBudget
from remat.frameworks.torch.model_plan import ModelPlan, order_of
from remat.frameworks.torch.model_trial import Loss
from remat.frameworks.torch.modules import Parts, all_parts
from remat.frameworks.torch.plan_agreement import compare_plans, groups_of_model, largest, of_first_process
from remat.frameworks.torch.plan_trials import PlanTrials
from remat.frameworks.torch.planned_blocks import (
    Block,
    PlannedCalls,
    are_handled,
    block_calls,
    model_forward,
    plain_module,
    planned_module,
    to_restore,
)
from remat.frameworks.torch.planned_lineage import run_by_script, script_of
from remat.frameworks.torch.whole_model import measure_step, traceable_step
from remat.planners import Plan
from remat.problem import Graph
from remat.pytree import flatten
from remat.units import bytes_text

__all__ = ["PlannedModel", "attach", "planned_model"]

KEPT = 16  # plans for different shapes
# One thread at a time measures a model: what the model has is put back then, and the others find the plan.
_ONE_PLAN = threading.RLock()


class PlannedModel:
    """What a model's forward does under a budget; set on the model as `_remat_forward`."""

    def __init__(
        self,
        blocks: dict[str, nn.Module],
        memory: ModelBudget | None,
        plan: Plan | None,
        loss: Loss | None,
        on_new_shape: str,
        inside_blocks: bool,
        compiled: CompileOptions | None = None,
    ) -> None:
        self.names, self.token, self._inside_blocks = tuple(blocks), uuid4().hex, inside_blocks
        self.compiled = compiled
        self._memory, self._loss, self._on_new_shape = memory, loss, on_new_shape
        self._plans: OrderedDict[InputShapes, ModelPlan] = OrderedDict()
        self._given = None if plan is None else ModelPlan.of(plan, order_of(plan, self.names))
        self._last: ModelPlan | None = self._given
        self._agreed: ModelPlan | None = None  # by all processes that a sharded model waits for
        self._untrained: ModelPlan | None = None  # a new one, which no training step has used
        self._watched: FirstTrainingStep | None = None
        self._caches = [ReachCache() for _ in blocks]

    def __getstate__(self) -> dict[str, Any]:
        # A loss is often a lambda, and plans for new shapes can be made without.
        caches = [ReachCache() for _ in self.names]
        return {**vars(self), "_loss": None, "_agreed": None, "_watched": None, "_caches": caches}

    @property
    def last(self) -> ModelPlan | None:
        """The plan that was made last; None before the first call of a model without a sample."""
        return self._last

    def run(self, model: nn.Module, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the model returns; its blocks are run by the plan."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or are_handled(self.token) or _is_traced():
            return fn(*args, **kwargs)
        kwargs = _without_cache(model, fn, kwargs)
        fn = self._compiled(fn)
        parts = all_parts(model)
        is_one_of_many = is_sharded(model, parts)
        found = self._of_sharded(model) if is_one_of_many else self.plan_for(model, fn, args, kwargs, parts)
        sharded = sharded_modules_of(model, self.names) if is_one_of_many else ()
        run = partial(self._run, found, sharded, fn, args, kwargs)
        step = self._first_step(found, model, args, kwargs)
        return run() if step is None else step.run(run)

    def prepare(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the plan for these arguments."""
        fn = model_forward(model)
        kwargs = _without_cache(model, fn, kwargs)
        fn = self._compiled(fn)
        with torch.enable_grad():
            # Hooks of a sharded model gather its parameters: it is called as users call it.
            self.plan_for(model, model if is_sharded(model) else fn, args, kwargs)

    def _compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The model's forward, what is around its blocks as compiled code if the blocks are."""
        return fn if self.compiled is None else compiled_around_blocks(fn, self.compiled)

    def plan_for(
        self,
        model: nn.Module,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parts: Parts | None = None,
    ) -> ModelPlan:
        """The plan for these arguments; it is made if there is none."""
        if self._given is not None:
            return self._given
        shapes = InputShapes.of(model, args, kwargs, parts)
        with _ONE_PLAN:
            return self._known(shapes) or self._new(shapes, model, fn, args, kwargs)

    def _first_step(
        self, found: ModelPlan, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FirstTrainingStep | None:
        """The watch over the first training step of a new plan; None in others, and where nobody counts."""
        if self._watched is not None:
            self._watched.forget()
            self._watched = None
        if found is not self._untrained or is_recomputing():
            return None
        self._untrained = None
        device = cuda_of(devices_of(args, kwargs, list(model.parameters())))
        if device is None or not is_single_process() or has_saved_tensor_hooks():
            return None
        assert found.memory is not None
        assert found.measured_peak is not None
        self._watched = FirstTrainingStep(model, CudaMeter(device), found.memory, found.measured_peak)
        return self._watched

    def _known(self, shapes: InputShapes) -> ModelPlan | None:
        known = shapes if shapes in self._plans else next((k for k in self._plans if k.covers(shapes)), None)
        if known is None:
            return None
        self._plans.move_to_end(known)
        return self._plans[known]

    def _new(
        self,
        shapes: InputShapes,
        model: nn.Module,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> ModelPlan:
        if self._plans and self._on_new_shape == "error":
            planned = " and ".join(each.text for each in self._plans)
            raise ProblemError(
                f"the model is planned for {planned}, and called with {shapes.text}; what differs is "
                f"{next(reversed(self._plans)).differences(shapes)}. Call it as it is planned for, or give "
                'on_new_shape="plan"'
            )
        found = self._planned(model, fn, args, kwargs, shapes.tensors_text)
        self._last = self._plans[shapes] = self._untrained = found
        while len(self._plans) > KEPT:
            self._plans.popitem(last=False)
        return self._last

    def _of_sharded(self, model: nn.Module) -> ModelPlan:
        """The plan that all processes have agreed on."""
        if self._agreed is None:
            if self._last is None:
                raise ProblemError(
                    "a sharded model (FSDP2, DTensors) is measured before its first call: give auto_checkpoint sample="
                )
            groups = groups_of_model(model)
            if self._given is not None:
                compare_plans(str((self._given.order, self._given.items, self._given.remade)), groups)
            self._last = self._agreed = of_first_process(self._last, groups)
        return self._agreed

    def _run(
        self,
        found: ModelPlan,
        sharded: Sequence[Sequence[nn.Module]],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if isinstance(found.plan.problem, Graph):
            script = script_of(found.plan)
            # A segment of the user's around the model drops what is saved here, and brings it back.
            is_plain = not script.dropped or has_saved_tensor_hooks()
            return fn(*args, **kwargs) if is_plain else run_by_script(partial(fn, *args, **kwargs), script)
        calls = PlannedCalls(
            self.token, found.order, found.items, sharded, found.remade, self._caches, given=found is self._given
        )
        with block_calls(calls):
            return fn(*args, **kwargs)

    def _planned(
        self, model: nn.Module, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: str
    ) -> ModelPlan:
        """A plan whose peak was measured and is inside the budget; of the model as one graph if that has to be."""
        assert self._memory is not None
        devices = devices_of(args, kwargs, list(model.parameters()))
        groups = groups_of_model(model)
        memory = -largest([-self._memory.bytes(model, devices)], groups)[0]
        run = partial(_on_copies, fn, args, kwargs)
        sharded = sharded_modules_of(model, self.names) if is_sharded(model) else ()
        trials = PlanTrials(
            model, devices, groups, self._loss, memory,
            lambda found: partial(self._run, found, sharded, run(), (), {}), inputs,
        )  # fmt: skip
        if not self.names:
            return trials.fitting(measure_step(model, run(), self._loss, devices))
        modules = dict(model.named_modules(remove_duplicate=False))
        blocks = {name: modules[name] for name in self.names}
        measured = measure_model(
            model, run(), blocks, self.token, self._loss, devices, groups=groups, inside=self._inside_blocks
        )
        measured = of_first_process(measured, groups)
        try:
            return trials.fitting(measured)
        except InfeasibleError as error:
            if groups or self.compiled is not None or not self._inside_blocks or measured.is_row:
                raise
            whole = traceable_step(model, run(), self._loss, devices)
            if whole is None:
                raise
            if memory < whole.least < error.minimum:
                note = f'{error}. As one graph, blocks="whole", it needs {bytes_text(whole.least, up=True)} at least'
                raise InfeasibleError(note, error.minimum, "bytes") from None
            try:
                return trials.fitting(whole)
            except InfeasibleError as other:
                raise (other if other.minimum < error.minimum else error) from None


def planned_model(
    model: nn.Module,
    blocks: dict[str, nn.Module],
    sample: tuple[tuple[Any, ...], dict[str, Any]] | None,
    memory: ModelBudget | None,
    plan: Plan | None,
    loss: Loss | None,
    on_new_shape: str,
    inside_blocks: bool,
    compiled: CompileOptions | None,
) -> nn.Module:
    """The model itself, whose blocks run by a plan from now on; with a `plan`, by that one.

    Without a sample the first call with gradients is one.
    """
    restore = to_restore(model)
    planned = PlannedModel(blocks, memory, plan, loss, on_new_shape, inside_blocks, compiled)
    try:
        for module in model.modules():
            plain_module(module)
        attach(model, planned, blocks)
        if plan is None and sample is not None:
            planned.prepare(model, *sample)
    except BaseException:
        restore()
        raise
    return model


def attach(model: nn.Module, planned: PlannedModel, blocks: dict[str, nn.Module], *, whole: bool = True) -> None:
    """Let calls of the blocks, and of the `whole` model, go where the plan, or a measurement, says."""
    numbers: dict[int, int] = {}
    for number, block in enumerate(blocks.values()):
        numbers.setdefault(id(block), number)  # one that is in the lists twice has the number of the first
        vars(block)["_remat_block"] = Block(numbers[id(block)], planned.token, is_kept=False, compiled=planned.compiled)
    for block in {id(block): block for block in blocks.values()}.values():
        planned_module(block)
    if not whole:
        return
    vars(model)["_remat_forward"] = planned
    if id(model) not in numbers:
        planned_module(model)


def _on_copies(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """The call with copies of its tensors: a model may write into what it is given."""
    leaves, tree = flatten((args, kwargs))
    copies = [leaf.detach().clone().requires_grad_(leaf.requires_grad) if _is_tensor(leaf) else leaf for leaf in leaves]
    args, kwargs = tree.unflatten(copies)
    return partial(fn, *args, **kwargs)


def _without_cache(model: nn.Module, fn: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments; a model of Hugging Face makes no key-value cache in training, as with its own checkpointing.

    It would hold keys and values of all layers, which nobody reads.
    """
    config = getattr(model, "config", None)
    if not model.training or "use_cache" in kwargs or not getattr(config, "use_cache", False):
        return kwargs
    parameters = signature(fn).parameters.values()
    takes_it = any(each.name == "use_cache" or each.kind == each.VAR_KEYWORD for each in parameters)
    return {**kwargs, "use_cache": False} if takes_it else kwargs


def _is_traced() -> bool:
    """Whether torch.func or torch.jit look at the model: its segments are plain calls for them, so a plan is no use."""
    return in_transform() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined,no-untyped-call]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)
