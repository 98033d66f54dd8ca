"""The costs of a model's blocks and of the code around them: the model as a chain.

The stages are the calls of blocks, in the order in which the model makes them, and the computations before, between and
after them, which run once and are recorded (`repeatable=False`). There are two passes over the model; in both, blocks
are *cut*: they run without a graph, and the model continues with leaves that have their values. So only what the model
needs around its blocks is live, and one block at a time:

    first   each block is measured where it is called, with the arguments of that call (measure_chain.py). Blocks of
            one kind are measured once. The loss, or the output, is pulled back.
    second  the bytes around blocks: levels and peaks between calls, and in the backward of what comes after them.

The code around blocks is timed in both passes; the first may include the start-up of libraries.

What it can miss: effects of one block on another, as through caches, and arguments that a block gets from a block that
is not the one before it. So a plan made from these costs is tried before it is used (planned_model.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, cast
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from remat.errors import InfeasibleError, ProblemError
from remat.execute.state_replay import preserved_state
from remat.frameworks.torch.internals.fsdp import refuse_sharded_parts
from remat.frameworks.torch.internals.graph import gradients_put_back
from remat.frameworks.torch.internals.modules import in_torch_checkpoint
from remat.frameworks.torch.internals.storage import is_dense, storage_id
from remat.frameworks.torch.leaves import nbytes
from remat.frameworks.torch.meter import allocator_of, cuda_of
from remat.frameworks.torch.models.block_ranges import BlockOutput
from remat.frameworks.torch.models.block_stage import least_while_recorded, with_options
from remat.frameworks.torch.models.compiled_blocks import CompiledBlock
from remat.frameworks.torch.models.cut_blocks import BlockCall, CutBlocks
from remat.frameworks.torch.models.in_place_stages import copied
from remat.frameworks.torch.models.measure_chain import (
    StageMeasurement,
    as_segment,
    cotangent_loss,
    kind_of,
    leaves_of_its_own,
)
from remat.frameworks.torch.models.model_trial import Loss, loss_of, undisturbed
from remat.frameworks.torch.models.plan_agreement import in_all_or_none
from remat.frameworks.torch.models.planned_blocks import block_calls
from remat.frameworks.torch.replay.environment import reached, replayable_states
from remat.frameworks.torch.segments.checkpoint import checkpoint
from remat.planners import Plan
from remat.planners import plan as make_plan
from remat.problem import Chain, Option, Stage
from remat.pytree import flatten
from remat.schedule import Op, Record, Schedule
from remat.segments import CheckpointOptions

__all__ = ["AROUND", "TOGETHER", "MeasuredModel", "measure_model"]

TOGETHER = " + "  # between the names of blocks that are one stage
SMALL = 1e-3  # seconds of a block that takes nearly as long in Python
AROUND = ("before the blocks", "between the blocks", "after the blocks")  # names of stages that are not blocks


@dataclass(frozen=True)
class MeasuredModel:
    """A model as a chain, the order in which it calls its blocks, and the bytes of its outputs that no plan counts.

    Compiled blocks take as much memory without a tape as when they are recorded, since what the graph saves is live
    until the block returns. So plans in which no block runs without a tape come first, and if none of them fits, plans
    in which each block has the option with the lowest peak while it is recorded.
    """

    chain: Chain
    order: tuple[int, ...]
    outputs: int
    chain_of_least: Chain | None = None

    @property
    def is_row(self) -> bool:
        """Whether each block takes the output of the one before, so that nothing bypasses the blocks."""
        return all(stage.name != AROUND[1] for stage in self.chain.stages)

    def plan(self, memory: int) -> Plan:
        """The best plan for this memory."""
        try:
            return make_plan(self.chain, memory)
        except InfeasibleError:
            if self.chain_of_least is None:
                raise
            return make_plan(self.chain_of_least, memory)

    def alternatives(self, memory: int) -> Iterator[Plan]:
        """Further plans for this memory: for compiled blocks, those that use at most two of their options.

        Their times differ by a few per cent, as much as measuring blocks alone is off. Of two options, one is too large
        for all blocks and the other is not. If Python dominates, a plan that drops nothing inside blocks is another.
        """
        number = max(len(each.options) for each in self.chain.stages)
        if self.chain_of_least is None:
            kept = [each.options[0].record for each in self.chain.stages if each.name not in AROUND]
            if number > 1 and sum(kept) < SMALL * len(kept) and (plan := self._plan_with((0,), memory)):
                yield plan
        if self.chain_of_least is None or number < 3:
            return
        is_enough = [self._plan_with((each,), memory) is not None for each in range(number)]
        for large, small in product(range(number), repeat=2):
            if is_enough[small] and not is_enough[large]:
                plan = self._plan_with((large, small), memory)
                if plan is not None:
                    yield plan

    def _plan_with(self, options: Sequence[int], memory: int) -> Plan | None:
        """The best plan in which blocks use only these of their options (the last, if they have fewer), or None."""
        numbers = [[min(number, len(each.options) - 1) for number in options] for each in self.chain.stages]
        stages = [
            replace(each, options=tuple(each.options[number] for number in some))
            for each, some in zip(self.chain.stages, numbers, strict=True)
        ]
        try:
            plan = make_plan(Chain(stages, self.chain.input), memory)
        except InfeasibleError:
            return None
        ops: list[Op] = []
        for op in plan.schedule:
            recorded = range(op.start, op.stop) if isinstance(op, Record) else ()
            ops += [Record(at, at + 1, numbers[at][cast(Record, op).option]) for at in recorded] or [op]
        return replace(plan, problem=self.chain, source=Schedule(ops))


def measure_model(
    model: nn.Module,
    run: Callable[[], Any],
    blocks: dict[str, nn.Module],
    token: str,
    loss: Loss | None,
    devices: Sequence[torch.device],
    *,
    groups: Sequence[Any] = (),
    inside: bool = False,
) -> MeasuredModel:
    """The chain of a model that `run` calls with gradients; all processes of `groups` call it equally often.

    With `inside`, the options of a stage include keeping only part of what the block's backward needs.
    """
    names = list(blocks)
    refuse_sharded_parts(blocks)
    with undisturbed(model):
        costs = _BlockCosts(token, names, list(blocks.values()), groups, inside)
        _pass(costs, run, loss, devices)
    sizes = _SizesAround(token, allocator_of(devices))
    with undisturbed(model), sizes.meter.counting():  # it draws the same random numbers
        _pass(sizes, run, loss, devices)
    if not costs.stages:
        raise ProblemError(
            f"{type(model).__name__} did not call its blocks {names[0]!r} to {names[-1]!r} in the sample's forward: "
            "name those that it calls, blocks=..."
        )
    stages, least = _with_rest(costs, sizes), None
    if any(isinstance(call, CompiledBlock) for call in costs.functions):
        least = Chain([each if each.name in AROUND else least_while_recorded(each) for each in stages], sizes.results)
        stages = [replace(each, repeatable=False) for each in stages]
    return MeasuredModel(Chain(stages, input=sizes.results), tuple(costs.order), sizes.outputs, least)


def _pass(calls: CutBlocks, run: Callable[[], Any], loss: Loss | None, devices: Sequence[torch.device]) -> None:
    calls.begin(cuda_of(devices))
    with block_calls(calls):
        out = run()
    value = loss_of(out, loss)
    level = calls.level()
    del out
    calls.note_outputs(level)
    calls.end_forward(value)
    if value is not None:
        torch.autograd.backward(value)
    calls.end_backward()
    calls.pull_back_first()


class _BlockCosts(CutBlocks):
    """Measures each block where it is called, and the seconds around the blocks.

    A block that writes into what it takes from the block before forms one stage with it, since nothing can be kept
    between them. So does one that returns only its input or views of it (`nn.Identity`, `nn.Flatten`), since keeping
    these means keeping the input. A block that writes into something else is always recorded.

    A block that leaves itself out at random, as in stochastic depth, counts as one that does not.
    """

    def __init__(
        self, token: str, names: Sequence[str], blocks: Sequence[nn.Module], groups: Sequence[Any], inside: bool
    ) -> None:
        super().__init__(token)
        self._names, self._blocks, self._groups, self._inside = names, blocks, groups, inside
        self.order: list[int] = []
        self.functions: list[Callable[..., Any]] = []
        self.stages: list[Stage] = []
        self.first_calls: list[int] = []  # of stages
        self.is_next: list[bool] = []  # whether a stage takes the output of the one before
        self._known: dict[object, Stage] = {}
        self._output: BlockOutput | None = None
        self._taken: dict[int, int] = {}
        self._stage: tuple[Callable[[Any], Any], Any, object] | None = None  # the last one: function, arguments, kind

    def before(self, call: BlockCall) -> None:
        if in_torch_checkpoint():
            raise ProblemError(
                f"the model has a torch.utils.checkpoint around its block {self._names[call.block]!r}, which "
                "recomputes everything inside: call the block without it, so that the plan decides"
            )
        self._taken = {} if self._output is None else self._output.taken_by(call.leaves)
        call.note_objects()
        call.note_generators()

    def after(self, call: BlockCall, out: Any) -> None:
        call.end()
        is_nothing = call.makes_nothing(out, partial(in_all_or_none, self._groups, self._names[call.block]))
        self._output = BlockOutput(out, call.given, self._taken)
        kind = kind_of(self._blocks[call.block], call.arguments)
        name, function, arguments = self._names[call.block], call.of_arguments(), call.arguments
        joined = (call.writes or is_nothing) and self._taken and self._stage is not None
        if joined:
            assert self._stage is not None
            before, arguments, kind_before = self._stage
            function, kind = call.after(before, self._taken), (kind_before, kind)
            name = f"{self.stages.pop().name}{TOGETHER}{name}"
        else:
            self.first_calls.append(len(self.order))
            self.is_next.append(bool(self._taken))
        block = call if self._inside and not joined and not call.writes else None
        fn = (lambda *args, **kwargs: function((args, kwargs))) if joined else call.fn
        segment = None if isinstance(fn, CompiledBlock) else call.of_arguments(as_segment(fn))
        stage = self._measured(kind, segment, function, arguments, name, block, on_copy=call.writes and not joined)
        if not call.writes:
            self._compare(call)
        self.order.append(call.block)
        self.functions.append(call.fn)
        self.stages.append(stage)
        self._stage = function, arguments, kind

    def _measured(
        self,
        kind: object,
        segment: Callable[[Any], Any] | None,
        function: Callable[[Any], Any],
        arguments: Any,
        name: str,
        block: BlockCall | None,
        on_copy: bool,
    ) -> Stage:
        if kind not in self._known:
            own = leaves_of_its_own(arguments, first=True)
            run = (lambda x: function(copied(x))) if on_copy else function
            measurement = StageMeasurement(run, own, together=bool(self._groups))
            stage = measurement.stage(name)
            if segment is not None and not on_copy:
                # The cost of recomputing it is the extra time as a segment, compared with keeping its tape.
                twice, kept = measurement.seconds_as_segment(segment), stage.options[0]
                stage = replace(stage, forward=max(stage.forward, twice - kept.record - kept.backward))
            if block is not None:
                module, alone = self._blocks[block.block], len(self._blocks) == 1
                stage = with_options(stage, own, block, module, self._groups, alone=alone)
            self._known[kind] = stage
        return replace(self._known[kind], name=name, repeatable=not on_copy)

    def _compare(self, call: BlockCall) -> None:
        """Run a block as a segment, and its backward, so that its determinism check is done before training.

        The check takes memory: here only one block is live, in a training step much more.
        """
        module = self._blocks[call.block]
        args, kwargs = leaves_of_its_own(call.arguments, first=True)
        states = replayable_states(reached(call.fn, arguments=call.leaves))
        with gradients_put_back(module.parameters()), preserved_state(states), call.objects_as_before():
            loss = cotangent_loss(checkpoint(call.fn, args, kwargs, CheckpointOptions()))
            if loss is not None:
                torch.autograd.backward(loss)


class _SizesAround(CutBlocks):
    """Levels and peaks of memory between the calls of blocks."""

    def __init__(self, token: str, meter: Any) -> None:
        super().__init__(token)
        self.meter = meter
        self.levels: list[int] = []  # at each call, and at the end of the forward
        self.peaks: list[int] = []  # before each call, after the last one, and in the two parts of the backward
        self.taken: list[int] = []  # bytes with a graph that each call takes
        self.made: list[int] = []  # bytes that each call makes
        self.is_held: list[bool] = []  # at each call, whether the output of the call before is still live
        self._graphs: list[Any] = []  # of what each call takes: held here, as real blocks would
        self._outputs: list[ReferenceType[Any]] = []  # storages that the last call made

    def level(self) -> int:
        return int(self.meter.now())

    def begin(self, device: torch.device | None) -> None:
        super().begin(device)
        self.start = self.meter.now()
        self.meter.reset_peak()

    def before(self, call: BlockCall) -> None:
        self._note()
        active = [leaf for leaf in call.leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        self.taken.append(_bytes(active))
        self._graphs += [leaf.grad_fn for leaf in active]
        self.is_held.append(any(storage() is not None for storage in self._outputs))

    def after(self, call: BlockCall, out: Any) -> None:
        # Tensors that are only passed on count as made, too.
        before = {id(storage) for each in self._outputs if (storage := each()) is not None}
        made = [
            leaf
            for leaf in flatten(out)[0]
            if isinstance(leaf, Tensor)
            and (id(leaf) not in call.given or (is_dense(leaf) and id(leaf.untyped_storage()) in before))
        ]
        self.made.append(_bytes(made))
        self._outputs = [ref(leaf.untyped_storage()) for leaf in made if is_dense(leaf)]
        self.meter.reset_peak()

    def end_forward(self, results: Any) -> None:
        super().end_forward(results)
        self._note()
        self.results = _bytes(flatten(results)[0])
        self.meter.reset_peak()

    def end_backward(self) -> None:
        super().end_backward()
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
    """The stages of blocks, and those around them.

    A block that is cut holds only its output. So at the end of a call, live memory is what was live at the first call,
    what the graphs between calls hold (their tapes, and the outputs of blocks, which are inputs of these stages), and
    the call's output; the model holds anything beyond that for later. The caller holds the results until the backward
    has ended: they count as the chain's input.
    """
    n, start, level = len(costs.order), sizes.start, sizes.levels[0]
    seconds = [min(each) for each in zip(costs.seconds, sizes.seconds, strict=True)]  # the first pass may start cold
    state = min(sizes.taken[0], level - start)
    own, recording = level - start - state, sizes.peaks[0] - start
    pulling = sizes.peaks[n + 2] - sizes.last + level - start
    stages = [_once(AROUND[0], state, own, recording, pulling, seconds[0], seconds[-1])]
    for stage, i, is_next in zip(costs.stages, costs.first_calls, costs.is_next, strict=True):
        if i and not is_next:
            made, taken, held = sizes.made[i - 1], sizes.taken[i], sizes.is_held[i]
            recording = sizes.peaks[i] - level - made
            level += made if held else 0
            own = max(0, sizes.levels[i] - level - taken)
            level += own
            stages.append(_once(AROUND[1], taken, own, recording, own + taken + made, seconds[i], seconds[i], held))
        stages.append(stage)
    began = level + sizes.made[-1] + sizes.results
    own, recording, pulling = (size - began for size in (sizes.levels[n], sizes.peaks[n], sizes.peaks[n + 1]))
    stages.append(_once(AROUND[2], 0, own, recording, pulling, seconds[n], seconds[n + 1]))
    return stages


def _once(
    name: str,
    output: int,
    tape: int,
    recording: int,
    pulling: int,
    forward: float,
    backward: float,
    holds_input: bool = True,
) -> Stage:
    """A stage that is always recorded; measured bytes are raised to what a stage needs by definition."""
    tape = max(0, tape)
    option = Option(
        tape,
        forward,
        backward,
        record_peak=max(recording, output + tape),
        pullback_peak=max(pulling, tape),
        holds_input=holds_input,
        holds_output=False,
    )
    return Stage(forward, output=output, options=[option], name=name, repeatable=False)
