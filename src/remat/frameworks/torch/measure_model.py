"""What the blocks of a model cost, and what lies around them: the model as a chain.

Its stages are the calls of blocks, in the order in which the model makes them, and what it computes before, between and
after them, which runs once and is recorded (`repeatable=False`). Two passes over the model; in both, blocks are *cut*:
they run without a graph, and the model goes on with leaves that have their numbers. So no more is live than the
model needs around its blocks, and one block at a time:

    first   each block is measured where it is called, with the arguments of that call (measure_chain.py), and what is
            around blocks is timed. Blocks of one kind are measured once. The loss, or the output, is pulled back.
    second  the bytes around blocks: levels and peaks between calls, and in the backward of what comes after them.

What it can miss: what blocks leave in each other's way, as caches do, and arguments that a block gets from one that is
not the block before. So a plan that was made from it is tried before it is used (planned_model.py).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from remat.errors import ProblemError
from remat.execute.recomputation import recomputing
from remat.execute.state_replay import preserved_state
from remat.frameworks.torch.block_ranges import BlockOutput
from remat.frameworks.torch.environment import reached, replayable_states
from remat.frameworks.torch.graph import hooks_suspended, without_saved_tensor_hooks
from remat.frameworks.torch.leaves import nbytes
from remat.frameworks.torch.measure_chain import _kind, _leaves_of_its_own, _loss, _Measurement, _renamed
from remat.frameworks.torch.meter import cuda_of, meter_for
from remat.frameworks.torch.planned_blocks import block_calls
from remat.frameworks.torch.replayable_state import global_generators
from remat.frameworks.torch.storage import storage_id
from remat.problem import Chain, Option, Stage
from remat.pytree import flatten

__all__ = ["MeasuredModel", "Trial", "loss_of", "measure_model", "undisturbed"]

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class MeasuredModel:
    """A model as a chain, and which blocks it calls, in which order."""

    chain: Chain
    order: tuple[int, ...]


def measure_model(
    model: nn.Module,
    run: Callable[[], Any],
    blocks: dict[str, nn.Module],
    token: str,
    loss: Loss | None,
    devices: Sequence[torch.device],
) -> MeasuredModel:
    """The chain of a model that `run` calls once, with gradients."""
    names = list(blocks)
    with undisturbed(model):
        costs = _BlockCosts(token, names, list(blocks.values()))
        _pass(costs, run, loss, devices)
        sizes = _SizesAround(token, meter_for(devices))
        with sizes.meter.counting():
            _pass(sizes, run, loss, devices)
    if not costs.stages:
        raise ProblemError(
            f"{type(model).__name__} did not call its blocks {names[0]!r} to {names[-1]!r} in the sample's forward: "
            "name those that it calls, blocks=..."
        )
    return MeasuredModel(Chain(_with_rest(costs, sizes), input=sizes.results), tuple(costs.order))


class undisturbed(ExitStack):  # used as a function
    """A block in which a model may run, and be differentiated, as often as needed: nothing is left of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model

    def __enter__(self) -> "undisturbed":
        reach = reached(self._model)
        gradients = [(parameter, parameter.grad) for parameter in self._model.parameters()]
        self.callback(_set_gradients, gradients)
        self.enter_context(preserved_state([*global_generators(), *replayable_states(reach)]))
        self.enter_context(without_saved_tensor_hooks())
        self.enter_context(recomputing(True))
        self.enter_context(hooks_suspended([tensor for tensor in reach.tensors if tensor.requires_grad]))
        self.enter_context(torch.enable_grad())
        return self


def _set_gradients(gradients: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    for parameter, gradient in gradients:
        parameter.grad = gradient


def loss_of(out: Any, loss: Loss | None) -> Tensor | None:
    """What is differentiated: the loss, if one is given or the model returns one; else its whole output."""
    if loss is not None:
        found = loss(out)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ProblemError(f"loss must return a scalar tensor, not {found!r:.60}")
        return found
    own = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if isinstance(own, Tensor) and own.numel() == 1 and own.requires_grad:
        return own
    return _loss(out)


def _pass(calls: "_Cut", run: Callable[[], Any], loss: Loss | None, devices: Sequence[torch.device]) -> None:
    calls.begin(cuda_of(devices))
    with block_calls(calls):
        out = run()
    value = loss_of(out, loss)
    calls.end_forward((out, value))
    if value is not None:
        torch.autograd.backward(value)
    calls.end_backward()
    calls.pull_back_first()


class _Cut:
    """Calls of blocks that are cut out of the graph."""

    def __init__(self, token: str) -> None:
        self.model = token
        self._device: torch.device | None = None
        self._first: Any = None

    def begin(self, device: torch.device | None) -> None:
        """The model is about to run."""
        self._device = device

    def call(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a block returns, as leaves."""
        leaves = flatten((args, kwargs))[0]
        if self._first is None:
            self._first = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        self.before(block, fn, args, kwargs)
        with torch.no_grad():
            out = fn(*args, **kwargs)
        wants = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves) or self.trains(block, fn)
        given = {id(leaf) for leaf in leaves}
        values, tree = flatten(out)
        for place, value in enumerate(values):
            if isinstance(value, Tensor) and id(value) not in given:
                is_active = wants and (value.is_floating_point() or value.is_complex())
                values[place] = value.detach().requires_grad_(is_active)
        del out
        result = tree.unflatten(values)
        self.after(result, leaves)
        return result

    def trains(self, block: int, fn: Callable[..., Any]) -> bool:
        """Whether a block has parameters that want gradients."""
        module = getattr(fn, "__self__", None)
        return not isinstance(module, nn.Module) or any(parameter.requires_grad for parameter in module.parameters())

    def before(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A block is about to run."""

    def after(self, out: Any, arguments: list[Any]) -> None:
        """A block has returned this."""

    def end_forward(self, results: Any) -> None:
        """The model has returned, and the loss is there."""

    def end_backward(self) -> None:
        """What comes after the last block has been pulled back."""

    def pull_back_first(self) -> None:
        """Pull back what comes before the first block."""
        first, self._first = self._first, None
        value = _loss([leaf for leaf in first or [] if leaf.requires_grad])
        if value is None:
            return
        del first
        try:
            torch.autograd.backward(value)
        except RuntimeError:  # the loss depends on it directly, and has freed it: it was counted there
            return

    def finish(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)


class _BlockCosts(_Cut):
    """Measures each block where it is called, and the seconds around them."""

    def __init__(self, token: str, names: Sequence[str], blocks: Sequence[nn.Module]) -> None:
        super().__init__(token)
        self._names, self._blocks = names, blocks
        self.order: list[int] = []
        self.stages: list[Stage] = []
        self.is_next: list[bool] = []  # whether a call takes what the one before returned, and leaves it as it is
        self.seconds: list[float] = []  # before, between and after the calls; then those of the backward
        self._known: dict[object, Stage] = {}
        self._output: BlockOutput | None = None

    def begin(self, device: torch.device | None) -> None:
        super().begin(device)
        self._began = perf_counter()

    def before(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._time()
        name = self._names[block]
        arguments = flatten((args, kwargs))[0]
        taken = {} if self._output is None else self._output.taken_by(arguments)
        self.is_next.append(bool(taken))
        call = _leaves_of_its_own((args, kwargs), first=True)
        key = _kind(self._blocks[block], call)
        if key is None or key not in self._known:
            with preserved_state(replayable_states(reached(fn, arguments=arguments))):
                self._known[key] = _Measurement(lambda x: fn(*x[0], **x[1]), call).stage(name)
        self.order.append(block)
        self.stages.append(_renamed(self._known[key], name))

    def after(self, out: Any, arguments: list[Any]) -> None:
        self._output = BlockOutput(out, arguments)
        self.finish()
        self._began = perf_counter()

    def end_forward(self, results: Any) -> None:
        self._time()
        self._began = perf_counter()

    def end_backward(self) -> None:
        self._time()
        self._began = perf_counter()

    def pull_back_first(self) -> None:
        super().pull_back_first()
        self._time()

    def _time(self) -> None:
        self.finish()
        self.seconds.append(perf_counter() - self._began)


class _SizesAround(_Cut):
    """Levels and peaks of memory between the calls of blocks."""

    def __init__(self, token: str, meter: Any) -> None:
        super().__init__(token)
        self.meter = meter
        self.levels: list[int] = []  # at each call, and at the end of the forward
        self.peaks: list[int] = []  # before each call, after the last one, and in the two parts of the backward
        self.taken: list[int] = []  # bytes with a graph that each call takes
        self.made: list[int] = []  # bytes that each call makes

    def begin(self, device: torch.device | None) -> None:
        super().begin(device)
        self.start = self.meter.now()
        self.meter.reset_peak()

    def before(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._note()
        leaves = flatten((args, kwargs))[0]
        self.taken.append(_bytes(leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None))

    def after(self, out: Any, arguments: list[Any]) -> None:
        given = {id(leaf) for leaf in arguments}
        self.made.append(_bytes(leaf for leaf in flatten(out)[0] if id(leaf) not in given))
        self.meter.reset_peak()

    def end_forward(self, results: Any) -> None:
        self._note()
        self.results = _bytes(flatten(results)[0])
        self.meter.reset_peak()

    def end_backward(self) -> None:
        self.peaks.append(self.meter.peak())
        self.meter.reset_peak()
        self.last = self.meter.now()

    def pull_back_first(self) -> None:
        super().pull_back_first()
        self.peaks.append(self.meter.peak())

    def _note(self) -> None:
        self.levels.append(self.meter.now())
        self.peaks.append(self.meter.peak())


def _bytes(leaves: Iterable[Any]) -> int:
    return sum({storage_id(leaf): nbytes(leaf) for leaf in leaves if isinstance(leaf, Tensor)}.values())


def _with_rest(costs: _BlockCosts, sizes: _SizesAround) -> list[Stage]:
    """The stages of blocks, with those around them.

    Blocks that are cut hold nothing but what they return. So when a call ends, what is live is what was live at the
    first call, and what it made; anything beyond that is held by the model, for what comes later. The results are held
    by the caller until the backward has ended: they count as the chain's input.
    """
    n, seconds, start, level = len(costs.stages), costs.seconds, sizes.start, sizes.levels[0]
    state = min(sizes.taken[0], level - start)
    pulling = sizes.peaks[n + 2] - sizes.last + level - start
    stages = [
        _once(
            "before the blocks", state, level - start - state, sizes.peaks[0] - start, pulling, seconds[0], seconds[-1]
        )
    ]
    for i, stage in enumerate(costs.stages):
        if i and not costs.is_next[i]:
            began = level + sizes.made[i - 1]
            own = sizes.levels[i] - began - sizes.taken[i]
            recording = sizes.peaks[i] - began
            stages.append(_once("between the blocks", sizes.taken[i], own, recording, 0, seconds[i], seconds[i]))
        stages.append(stage)
    began = level + sizes.made[-1] + sizes.results
    own, recording, pulling = (size - began for size in (sizes.levels[n], sizes.peaks[n], sizes.peaks[n + 1]))
    stages.append(_once("after the blocks", 0, own, recording, pulling, seconds[n], seconds[n + 1]))
    return stages


def _once(name: str, output: int, tape: int, recording: int, pulling: int, forward: float, backward: float) -> Stage:
    """A stage that is recorded when it runs; bytes may come out below what a stage needs by definition."""
    tape = max(0, tape)
    option = Option(
        tape,
        forward,
        backward,
        record_peak=max(recording, output + tape),
        pullback_peak=max(pulling, tape),
        holds_output=False,
    )
    return Stage(forward, output=output, options=[option], name=name, repeatable=False)


class Trial:
    """The peak of one forward and backward of a model, above the level at its beginning, with gradients there."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        self._model, self._meter, self._device = model, meter_for(devices), cuda_of(devices)
        self.peak, self.seconds = 0, 0.0

    def run(self, run: Callable[[], Any], loss: Loss | None) -> "Trial":
        """Run the model once, and note the peak."""
        with undisturbed(self._model):
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            with self._meter.counting():
                before = self._meter.now()
                self._meter.reset_peak()
                began = perf_counter()
                out = run()  # as callers do, who hold it until the backward has ended
                value = loss_of(out, loss)
                if value is not None:
                    torch.autograd.backward(value)
                if self._device is not None:
                    torch.cuda.synchronize(self._device)
                self.seconds = perf_counter() - began
                self.peak = self._meter.peak() - before
        return self
