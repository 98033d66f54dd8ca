"""The costs of the stages of a chain on PyTorch: each stage is run alone; equal stages are measured once.

The rule: measuring has no side effects (environment.py): parameters get their own `.grad` back, and no hook of theirs
runs. Bytes are those above the stage's live input, as in `Stage` and `Option`:

    run       without a graph where the stage can do without: the output, and the peak
    record    with a graph: what is held once the output is dropped (not counting the output, if the graph holds it),
              and the peak
    pullback  from a cotangent that the engine makes, into gradients that exist already: the peak

Stages that write into their input are measured together with the stage before (in_place_stages.py). If the first stage
does so, it is measured on a copy, and always recorded, since it destroys its input.

What it can miss: on the CPU, workspace that kernels allocate without PyTorch. Equal stages are modules of one class
with equal `repr` and parameter shapes, on equal inputs; all other functions are measured separately.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from remat.errors import ProblemError, RematError
from remat.execute.recomputation import recomputing
from remat.execute.state_replay import preserved_state
from remat.frameworks.torch.internals.autocast import AutocastState, forget_casts
from remat.frameworks.torch.internals.collectives import groups_used, refuse_static_ddp
from remat.frameworks.torch.internals.fsdp import fsdp_modules_called, unsharded_class
from remat.frameworks.torch.internals.graph import gradients_put_back, hooks_suspended, reachable_leaves, set_gradients
from remat.frameworks.torch.internals.saved_tensor_hooks import without_saved_tensor_hooks
from remat.frameworks.torch.leaves import spec_of, tensors_in
from remat.frameworks.torch.meter import allocator_of, cuda_of, devices_of
from remat.frameworks.torch.models.in_place_stages import StageGroups, copied, stage_groups
from remat.frameworks.torch.models.runs_without_graph import without_graph_if_possible
from remat.frameworks.torch.replay.environment import reached, replayable_states
from remat.frameworks.torch.replay.known_reach import ReachCache
from remat.frameworks.torch.segments.checkpoint import CheckpointFrame, checkpoint
from remat.frameworks.torch.segments.saved_tensors import made_again
from remat.problem import Chain, Option, Stage
from remat.pytree import flatten
from remat.segments import CheckpointOptions, display_name

__all__ = [
    "StageMeasurement",
    "as_segment",
    "chain_key",
    "cotangent_loss",
    "kind_of",
    "leaves_of_its_own",
    "measure_chain",
]

QUICK = 0.05  # seconds: a stage that takes longer is timed once
TIMES = 5  # runs of a quick stage
TIMES_COMPARED = 15  # runs for each option of a block, since options differ by a few per cent


def measure_chain(stages: Sequence[Callable[[Any], Any]], x: Any) -> Chain:
    """The measured chain of these stages on an input like `x`, whose own bytes, held by the caller, do not count."""
    refuse_static_ddp("a chain")
    reach = reached(*stages, arguments=[x])
    measured: dict[object, Stage] = {}
    found = []
    with (
        preserved_state(replayable_states(reach)),
        without_saved_tensor_hooks(),
        recomputing(True),
        hooks_suspended([tensor for tensor in reach.tensors if tensor.requires_grad]),
    ):
        groups = _groups_of_own_stages(stages, x, reach.modules)
        for number, group in enumerate(groups.ranges):
            parts = [stages[i] for i in group]
            x = leaves_of_its_own(x, first=number == 0)
            writes = number == 0 and groups.writes_input
            run = partial(_run_all, parts, on_copy=writes) if writes or len(parts) > 1 else parts[0]
            key = _kind_of_all(parts, x)
            if key is None or key not in measured:
                measured[key] = StageMeasurement(run, x).stage("")
            name = _name(parts, group)
            found.append(_renamed(measured[key], name, functions=len(parts), repeatable=not writes))
            x = without_graph_if_possible(partial(run, x))
    return Chain(found, input=0)


def _groups_of_own_stages(stages: Sequence[Callable[[Any], Any]], x: Any, modules: Sequence[nn.Module]) -> StageGroups:
    """The groups of stages; raises a ProblemError if stages wait for other processes, before they run a second time."""
    sharded: list[Any] = []
    with groups_used(enabled=True) as used, fsdp_modules_called(modules, sharded):
        groups = stage_groups(stages, x)
    if sharded or any(group.size() > 1 for group in used):
        what = f"a sharded {unsharded_class(sharded[0]).__name__} (FSDP2)" if sharded else "collectives or DTensors"
        raise ProblemError(
            f"the stages of this chain wait for other processes ({what}), which would measure and plan it differently "
            "and wait in vain. auto_checkpoint(model, memory=...) makes one plan for all processes; or give each of "
            "them the same plan=, made from stages measured before they were sharded"
        )
    return groups


def _run_all(stages: Sequence[Callable[[Any], Any]], x: Any, *, on_copy: bool) -> Any:
    x = copied(x) if on_copy else x
    for stage in stages:
        x = stage(x)
    return x


def chain_key(stages: Sequence[Callable[[Any], Any]], x: Any) -> Hashable | None:
    """What the costs of stages depend on besides their code: modes, inputs, modules, tensors; None without grad."""
    if not torch.is_grad_enabled():
        return None
    reach = reached(*stages)
    tensors = [(*_spec(tensor), tensor.requires_grad) for tensor in reach.tensors]
    leaves = [(*_spec(leaf), leaf.requires_grad) if isinstance(leaf, Tensor) else repr(leaf) for leaf in flatten(x)[0]]
    return AutocastState().key, tuple(leaves), tuple(tensors), tuple(module.training for module in reach.modules)


def _spec(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device


@contextmanager
def _noted(name: str) -> Iterator[None]:
    """A context that measures a stage: errors of the stage get a note that it ran alone, and what that requires."""
    try:
        yield
    except (RematError, torch.cuda.OutOfMemoryError):  # these need no note
        raise
    except Exception as error:
        error.add_note(
            f"raised while remat ran block {name!r} by itself, several times from the same arguments, to measure it: "
            "a block must not count on how often it has run, nor add to a tensor that is passed to it. Return what it "
            'adds, as a result of the block; or, for tensors, plan the model as one graph, blocks="whole"'
        )
        raise


class StageMeasurement:
    """The runs of one stage from one input."""

    def __init__(self, stage: Callable[[Any], Any], x: Any, *, together: bool = False) -> None:
        self._stage, self._x = stage, x
        self._together = together  # with other processes, which wait for it: then all run it equally often
        devices = devices_of(x)
        self._device, self._meter = cuda_of(devices), allocator_of(devices)
        self._roots: list[Tensor] = []

    def stage(self, name: str) -> Stage:
        """The measured stage."""
        with self._gradients_there(), _noted(name):
            self._run()
            self._pull_back(self._record())
            with self._meter.counting():
                output, running = self._sizes_of_run()
            forward, record, backward = self._seconds()
            option = self._option(output, record, backward, "keep all")
        return Stage(forward, output=output, forward_workspace=max(0, running - output), name=name, options=[option])

    def seconds_as_segment(self, segment: Callable[[Any], Any]) -> float:
        """The seconds of forward and backward of the stage as a segment, including the overhead of recomputation.

        For a small block the overhead is more than the block's own time; on an accelerator kernels may hide it.
        """
        rows = []
        with self._gradients_there(), torch.enable_grad():
            for _ in range(TIMES + 1):  # the first one also runs the determinism check
                seconds, _ = self._timed(lambda: self._pull_back(segment(self._x)))
                self._drop_input_gradients()
                rows.append(seconds)
                if seconds > QUICK and len(rows) > 1 and not self._together:
                    break
        return median(rows[1:])

    def seconds_to_spare(self) -> float:
        """The seconds for which the host waits for the device in a forward and a backward; 0 on the CPU."""
        if self._device is None:
            return 0.0
        rows = []
        with self._gradients_there():
            for _ in range(TIMES):
                self._finish()
                self._pull_back(self._record())
                launched = perf_counter()
                self._finish()
                rows.append(perf_counter() - launched)
                self._drop_input_gradients()
        return median(rows)

    def option(self, stage: Stage, name: str, remade: Sequence[str], seconds: float | None = None) -> Option:
        """Another option of a measured stage: this function, whose backward recomputes part of the tape.

        The extra `seconds` may be given, since single runs of eager blocks do not distinguish them from noise.
        """
        known = stage.options[0]
        with self._gradients_there():
            self._pull_back(self._record())
            record, backward = known.record, known.backward + (seconds or 0.0)
            if seconds is None:
                _, record, backward = self._seconds(TIMES_COMPARED)
            return self._option(stage.output, record, backward, name, remade)

    def _option(self, output: int, record: float, backward: float, name: str, remade: Sequence[str] = ()) -> Option:
        with self._meter.counting():
            held, holds_output, recording, pulling = self._sizes_of_graph(output)
            holds_input = self._holds_input()
        tape = max(0, held - output if holds_output else held)
        return Option(
            tape,
            record,
            backward,
            record_peak=max(recording, output + tape),
            pullback_peak=max(pulling, tape),
            holds_input=holds_input,
            holds_output=holds_output,
            name=name,
            remade=remade,
        )

    def _sizes_of_run(self) -> tuple[int, int]:
        meter, before = self._meter, self._meter.now()
        meter.reset_peak()
        out = self._run()
        sizes = meter.now() - before, meter.peak() - before
        del out
        return sizes

    def _sizes_of_graph(self, output: int) -> tuple[int, bool, int, int]:
        """Bytes held after recording, whether the output is among them, and the peaks of record and pullback."""
        meter, before = self._meter, self._meter.now()
        meter.reset_peak()
        out = self._record()
        recording = meter.peak() - before
        loss = cotangent_loss(out)
        with_output = meter.now()
        del out
        held = meter.now() - before - _LOSS_BYTES * (loss is not None)
        holds_output = with_output - meter.now() < output
        meter.reset_peak()
        self._pull_back(loss, made=True)
        del loss
        pulling = meter.peak() - before
        self._drop_input_gradients()
        return held, holds_output, recording, pulling

    def _holds_input(self) -> bool:
        """Whether the graph or the output keeps the input alive; a norm in another dtype holds a copy instead."""
        leaves, tree = flatten(self._x)
        before = self._meter.now()
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaves[at] = made_again(leaf.detach().clone())
        size = self._meter.now() - before
        with torch.enable_grad():
            out = self._stage(tree.unflatten(leaves))
        with_input = self._meter.now()
        leaves.clear()
        freed = with_input - self._meter.now()
        del out
        return 2 * freed < size or not size

    def _seconds(self, times: int = TIMES) -> tuple[float, float, float]:
        rows = []
        for _ in range(times):
            forward, out = self._timed(self._run)
            del out
            record, out = self._timed(self._record)
            loss = cotangent_loss(out)
            del out
            backward, _ = self._timed(partial(self._pull_back, loss, made=True))
            self._drop_input_gradients()
            rows.append((forward, record, backward))
            if forward + record + backward > QUICK and not self._together:
                break
        forward, record, backward = (median(column) for column in zip(*rows, strict=True))
        return forward, record, backward

    def _timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        self._finish()
        began = perf_counter()
        result = call()
        self._finish()
        return perf_counter() - began, result

    def _finish(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)

    def _run(self) -> Any:
        forget_casts()
        return without_graph_if_possible(lambda: self._stage(self._x))

    def _record(self) -> Any:
        forget_casts()
        with torch.enable_grad():
            return self._stage(self._x)

    def _pull_back(self, value: Any, *, made: bool = False) -> None:
        loss = value if made else cotangent_loss(value)
        if loss is not None:
            loss.backward()

    @contextmanager
    def _gradients_there(self) -> Iterator[None]:
        """A context in which every parameter of the stage has a gradient to add to; its own is restored afterwards."""
        with torch.enable_grad():
            self._roots = [*reachable_leaves(tensors_in(self._stage(self._x))).values()]  # a first run, to warm up
        with gradients_put_back(self._roots):
            set_gradients((root, torch.zeros_like(root)) for root in self._roots)
            self._drop_input_gradients()
            try:
                yield
            finally:
                self._drop_input_gradients()

    def _drop_input_gradients(self) -> None:
        set_gradients((leaf, None) for leaf in tensors_in(self._x))


_LOSS_BYTES = 4  # of the number that a measurement differentiates


class _Cotangent(Function):
    """A number whose backward makes a cotangent of ones; the engine would hold one that is passed in too long."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        """A number that depends on all outputs."""
        ctx.specs = [(out.shape, out.dtype, out.device) for out in outputs]
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        """Ones for every output."""
        return tuple(torch.ones(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.specs)


def cotangent_loss(out: Any) -> Tensor | None:
    """A number whose backward gives every active tensor of an output a cotangent of ones; None if there are none."""
    active = [leaf for leaf in tensors_in(out) if leaf.requires_grad]
    return _Cotangent.apply(*active) if active else None  # type: ignore[no-untyped-call]


def as_segment(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a segment with a cache of what it reaches, as in all training steps but the first."""
    frame_of = partial(CheckpointFrame, cache=ReachCache())
    return lambda *args, **kwargs: checkpoint(fn, args, kwargs, CheckpointOptions(), None, frame_of)


def leaves_of_its_own(x: Any, *, first: bool) -> Any:
    """The value with detached tensors: those of the `first` stage require gradients as before, others if floating."""
    leaves, tree = flatten(x)
    found = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            wants = leaf.requires_grad if first else leaf.is_floating_point() or leaf.is_complex()
            leaf = leaf.detach().requires_grad_(wants)
        found.append(leaf)
    return tree.unflatten(found)


def kind_of(stage: object, x: Any) -> object:
    """A key that is equal for equal stages, or None for functions, which cannot be compared."""
    if not isinstance(stage, nn.Module):
        return None
    shapes = tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in stage.named_parameters())
    inputs = tuple(spec_of(leaf, "input") if isinstance(leaf, Tensor) else repr(leaf) for leaf in flatten(x)[0])
    wants = tuple(leaf.requires_grad for leaf in tensors_in(x))
    return type(stage), repr(stage), shapes, stage.training, inputs, wants


def _kind_of_all(stages: Sequence[object], x: Any) -> object:
    kinds = tuple(kind_of(stage, x) for stage in stages)
    return None if None in kinds else kinds


def _renamed(stage: Stage, name: str, **others: Any) -> Stage:
    return Stage.from_dict({**stage.to_dict(), "name": name, **others})


def _name(stages: Sequence[Callable[..., Any]], numbers: range) -> str:
    names = [type(stage).__name__ if isinstance(stage, nn.Module) else display_name(stage) for stage in stages]
    last = f"-{numbers[-1]}" if len(numbers) > 1 else ""
    return f"{numbers[0]}{last} {', '.join(names)}"
