"""A model under a budget: measured, planned, tried, and run according to the plan, for each shape of its inputs.

The rule: a plan is for the shapes, dtypes and devices of a model's inputs, its mode (`train` or `eval`), the bytes of
its parameters and of those that require gradients, and autocast. It is also used for inputs that are smaller by at most
a fifth, which need less; for others a new plan is made at their first call, from these inputs, or an error is raised.
The last KEPT plans are held.

A model that waits for other processes, such as a sharded one (FSDP2), is measured by calling it, in all processes at
once, and has one plan for all shapes and processes (plan_agreement.py).

A plan is tried on the sample before it is used (plan_trials.py). Measurements and trials have no effect on the model.
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
from remat.frameworks.torch.internals.collectives import is_single_process, refuse_static_ddp
from remat.frameworks.torch.internals.fsdp import is_sharded, refuse_fsdp1, sharded_modules_of
from remat.frameworks.torch.internals.functorch import in_transform
from remat.frameworks.torch.internals.modules import Parts, all_parts
from remat.frameworks.torch.internals.saved_tensor_hooks import has_saved_tensor_hooks
from remat.frameworks.torch.meter import CudaMeter, cuda_of, devices_of
from remat.frameworks.torch.models.compiled_blocks import CompileOptions, compiled_around_blocks
from remat.frameworks.torch.models.first_training_step import FirstTrainingStep
from remat.frameworks.torch.models.input_shapes import InputShapes
from remat.frameworks.torch.models.measure_model import measure_model
from remat.frameworks.torch.models.model_budget import ModelBudget
from remat.frameworks.torch.models.model_plan import ModelPlan, order_of
from remat.frameworks.torch.models.model_trial import Loss
from remat.frameworks.torch.models.plan_agreement import (
    compare_plans,
    groups_of_model,
    groups_waited_for,
    largest,
    of_first_process,
    planning_with,
)
from remat.frameworks.torch.models.plan_trials import PlanTrials
from remat.frameworks.torch.models.planned_blocks import (
    Block,
    PlannedCalls,
    are_handled,
    block_calls,
    model_forward,
    plain_module,
    planned_module,
    to_restore,
)
from remat.frameworks.torch.models.planned_lineage import run_by_script, script_of
from remat.frameworks.torch.models.whole_model import measure_step, traceable_step
from remat.frameworks.torch.replay.known_reach import ReachCache
from remat.planners import Plan
from remat.problem import Graph
from remat.profiling.model_record import ModelRecord
from remat.profiling.profiler import is_profiling, note_model
from remat.pytree import flatten
from remat.units import bytes_text

__all__ = ["PlannedModel", "attach", "planned_model"]

KEPT = 16  # plans for different shapes
# One thread at a time measures a model and then restores its state; the others wait, and use the plan.
_ONE_PLAN = threading.RLock()


class PlannedModel:
    """Runs a model's forward under a budget; set on the model as `_remat_forward`."""

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
        self._waits = False  # whether the model was seen to wait for other processes when it was measured
        self._agreed: ModelPlan | None = None  # of a model that waits: the plan that all processes agreed on
        self._untrained: ModelPlan | None = None  # a new plan that no training step has used
        self._watched: FirstTrainingStep | None = None
        self._caches = [ReachCache() for _ in blocks]

    def __getstate__(self) -> dict[str, Any]:
        # Without the loss, which is often a lambda: plans for new shapes can be made without it.
        caches = [ReachCache() for _ in self.names]
        return {**vars(self), "_loss": None, "_agreed": None, "_watched": None, "_caches": caches}

    @property
    def last(self) -> ModelPlan | None:
        """The newest plan; None before the first call of a model without a sample."""
        return self._last

    def run(self, model: nn.Module, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model, its blocks according to the plan."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or are_handled(self.token) or _is_traced():
            return fn(*args, **kwargs)
        kwargs = _without_cache(model, fn, kwargs)
        fn = self._compiled(fn)
        parts = all_parts(model)
        refuse_fsdp1("a planned model has", parts[0])
        is_one_of_many = is_sharded(model, parts)
        waits = is_one_of_many or self._waits
        found = self._of_all_processes(model) if waits else self.plan_for(model, fn, args, kwargs, parts)
        if is_profiling():
            name = type(model).__name__
            note_model(ModelRecord(name, found.plan, found.memory, found.measured_peak, found.outputs))
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
            # A sharded model is called as users call it, since its hooks gather the parameters.
            self.plan_for(model, model if is_sharded(model) else fn, args, kwargs)

    def _compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The model's forward; if its blocks are compiled, the code around them is compiled as well."""
        return fn if self.compiled is None else compiled_around_blocks(fn, self.compiled)

    def plan_for(
        self,
        model: nn.Module,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parts: Parts | None = None,
    ) -> ModelPlan:
        """The plan for these arguments; made now if there is none."""
        if self._given is not None:
            return self._given
        shapes = InputShapes.of(model, args, kwargs, parts)
        with _ONE_PLAN:
            return self._known(shapes) or self._new(shapes, model, fn, args, kwargs)

    def _first_step(
        self, found: ModelPlan, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FirstTrainingStep | None:
        """The observer of a new plan's first training step; None for other steps, and where no allocator counts."""
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

    def _of_all_processes(self, model: nn.Module) -> ModelPlan:
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
            # A user's segment around the model drops and recomputes what is saved here.
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
        """A plan whose measured peak is within the budget, made with the processes that the model waits for."""
        refuse_static_ddp(f"a {type(model).__name__} under a budget")
        forward = model if is_sharded(model) else model_forward(model)
        groups = groups_waited_for(model, self.token, lambda: _on_copies(forward, args, kwargs)())
        self._waits = bool(groups)
        with planning_with(groups):
            return self._planned_together(
                model,
                partial(_on_copies, fn, args, kwargs),
                devices_of(args, kwargs, list(model.parameters())),
                groups,
                inputs,
            )

    def _planned_together(
        self,
        model: nn.Module,
        run: Callable[[], Callable[[], Any]],
        devices: Sequence[torch.device],
        groups: Sequence[Any],
        inputs: str,
    ) -> ModelPlan:
        """The plan of all processes of the groups; for the model as one graph if no plan for blocks fits."""
        assert self._memory is not None
        memory = -largest([-self._memory.bytes(model, devices)], groups)[0]
        sharded = sharded_modules_of(model, self.names) if is_sharded(model) else ()
        trials = PlanTrials(
            model, devices, groups, self._loss, memory,
            lambda found: partial(self._run, found, sharded, run(), (), {}), inputs,
        )  # fmt: skip
        if not self.names and groups:
            raise ProblemError("a model that waits for other processes cannot be planned as one graph: name its blocks")
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
            if groups or self.compiled is not None or not self._inside_blocks:
                raise
            if measured.is_row:  # tracing a step needs as much memory as plain training, so it must be asked for
                error.add_note('blocks="whole" plans the operators of the whole model, and may need less memory')
                raise
            whole = traceable_step(model, run(), self._loss, devices)
            if whole is None:
                raise
            if memory < whole.least:  # no plan of it fits, so none is searched for
                if whole.least >= error.minimum:
                    raise
                note = f'{error}. As one graph, blocks="whole", it needs {bytes_text(whole.least, up=True)} at least'
                raise InfeasibleError(note, error.minimum, "bytes") from None
            try:
                return trials.fitting(whole, known=error.minimum)
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
    """The model itself, whose blocks run according to a plan from now on: the given one, or one made from the sample.

    Without a sample, the first call with gradients serves as one.
    """
    refuse_fsdp1("auto_checkpoint is given", [*model.modules()])
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
    """Let a plan or a measurement handle the calls of the blocks and, with `whole`, of the model."""
    numbers: dict[int, int] = {}
    for number, block in enumerate(blocks.values()):
        numbers.setdefault(id(block), number)  # a block that is listed twice has the first number
        vars(block)["_remat_block"] = Block(numbers[id(block)], planned.token, is_kept=False, compiled=planned.compiled)
    for block in {id(block): block for block in blocks.values()}.values():
        planned_module(block)
    if not whole:
        return
    vars(model)["_remat_forward"] = planned
    if id(model) not in numbers:
        planned_module(model)


def _on_copies(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """The call with copies of its tensors, since a model may write into its arguments."""
    leaves, tree = flatten((args, kwargs))
    copies = [leaf.detach().clone().requires_grad_(leaf.requires_grad) if _is_tensor(leaf) else leaf for leaf in leaves]
    args, kwargs = tree.unflatten(copies)
    return partial(fn, *args, **kwargs)


def _without_cache(model: nn.Module, fn: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with the key-value cache of a Hugging Face model off in training, as its own checkpointing has it.

    The cache would hold the keys and values of all layers, which nobody reads.
    """
    config = getattr(model, "config", None)
    if not model.training or "use_cache" in kwargs or not getattr(config, "use_cache", False):
        return kwargs
    parameters = signature(fn).parameters.values()
    takes_it = any(each.name == "use_cache" or each.kind == each.VAR_KEYWORD for each in parameters)
    return {**kwargs, "use_cache": False} if takes_it else kwargs


def _is_traced() -> bool:
    """Whether torch.func or torch.jit trace the model; segments are plain calls for them, so a plan has no use."""
    return in_transform() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined,no-untyped-call]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)
