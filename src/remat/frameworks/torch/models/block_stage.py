"""The options of a block: choices of what to keep of all that its backward needs, each measured like the block.

In: a stage that was measured with everything kept, and its block. The block is traced (block_trace.py), the planner
finds what to keep for some sizes of the tape, and each choice is run by lineage and measured: bytes held, and the peaks
of recording and pulling back. Its seconds are those of the block, of the operators that are rerun, and of lineage
itself (lineage_cost.py), minus the time that the host has to spare.

The rule: blocks that are compiled, or have compiled modules inside, are opaque: they have no other options, and neither
have blocks that refuse hooks on saved tensors (transforms of torch.func inside).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from remat.frameworks.torch.internals.functorch import refuses_hooks
from remat.frameworks.torch.lineage.block_trace import trace_block
from remat.frameworks.torch.lineage.lineage import dropped_results, run_by_lineage
from remat.frameworks.torch.lineage.lineage_cost import lineage_cost
from remat.frameworks.torch.meter import cuda_of, devices_of
from remat.frameworks.torch.models.compiled_blocks import CompiledBlock, fused
from remat.frameworks.torch.models.cut_blocks import BlockCall
from remat.frameworks.torch.models.measure_chain import StageMeasurement
from remat.frameworks.torch.models.plan_agreement import of_first_process
from remat.planners.graph.block_options import BlockOption, block_options
from remat.problem import Graph, Option, Stage
from remat.units import bytes_text

__all__ = ["least_while_recorded", "with_options"]

MOST = 8  # options of a block, besides those of least memory
MOST_ALONE = 20  # options of the only block of a model, where no mix of options is possible
MOST_COMPILED = 6  # options of a compiled block: each has to be compiled


def with_options(
    stage: Stage, x: Any, call: BlockCall, module: nn.Module, groups: Sequence[Any] = (), *, alone: bool = False
) -> Stage:
    """The stage of a block with further options, those that keep most first; `alone`: it is the only block.

    The options are the same in all processes of `groups`.
    """
    if any(is_compiled(each) for each in module.modules()):
        return least_while_recorded(stage)
    compiled = call.fn if isinstance(call.fn, CompiledBlock) else None
    function = call.of_arguments(None if compiled is None else compiled.plain)
    names = {id(each): name for name, each in module.named_modules()}
    device = cuda_of(devices_of(x, list(module.parameters())))
    try:
        graph = trace_block(function, x, names, device, in_place=compiled is None)
    except RuntimeError as error:
        if refuses_hooks(error):
            return stage
        raise
    cost = lineage_cost()
    spare = StageMeasurement(function, x).seconds_to_spare()
    measured = partial(_by_lineage, stage, function, x, cost.operator * graph.turn - spare, cost.remade)
    if compiled is None:
        choices = _choices(graph, MOST_ALONE if alone else MOST)
    elif any(each.writes for each in graph.operations):  # selective checkpoints do not accept in-place operators
        return stage
    else:
        measured = partial(_compiled, stage, call, compiled, x)
        choices = block_options(fused(graph), points=MOST_COMPILED)
    options = [stage.options[0]]
    for choice in of_first_process(choices, groups):  # so that all processes run the block equally often
        if remade := _remade(graph, choice):
            options.append(measured(choice, remade))
    return replace(stage, options=tuple(options), graph=graph)


def least_while_recorded(stage: Stage) -> Stage:
    """A stage of compiled code with its option of least recording peak, which it also takes without a tape."""
    option = min(stage.options, key=lambda each: (each.record_peak or 0, each.tape))
    workspace = max(stage.forward_workspace, (option.record_peak or 0) - stage.output)
    return replace(stage, options=(option,), forward_workspace=workspace)


def _choices(graph: Graph, points: int) -> tuple[BlockOption, ...]:
    """Choices of what to keep, most first: the fastest ones, and those of least memory.

    The latter do not depend on measured seconds, so that the least memory of a model is the same in every process.
    """
    by_bytes = [
        replace(each, seconds=1e-9 * (1 + graph.bytes_of((*each.reads, *each.outputs)))) for each in graph.operations
    ]
    sizes = block_options(Graph(by_bytes, graph.storages, graph.results), points=points, exact=False)
    least = {
        min(sizes, key=lambda each: (each.pullback_peak, each.tape_bytes)),
        min(sizes, key=lambda each: (each.tape_bytes, each.pullback_peak)),
    }
    found = {each.remade: each for each in block_options(graph, points=points)}
    for each in least:
        seconds = sum(graph.operations[number].seconds for number in each.remade)
        found.setdefault(each.remade, replace(each, seconds=seconds))
    return tuple(sorted(found.values(), key=lambda each: -each.tape_bytes))


def _by_lineage(
    stage: Stage,
    function: Callable[[Any], Any],
    x: Any,
    recording: float,
    remaking: float,
    choice: BlockOption,
    remade: tuple[str, ...],
) -> Option:
    """The measured option of a choice.

    `recording` is the overhead of lineage in seconds for the block, negative if the host has time to spare; `remaking`
    is that for each operator that is rerun.
    """

    def run(x: Any) -> Any:
        return run_by_lineage(function, (x,), {}, dropped_results(remade))

    seconds = choice.seconds + max(0.0, recording + remaking * len(choice.remade))
    return StageMeasurement(run, x).option(stage, _name(choice), remade, seconds)


def _compiled(
    stage: Stage, call: BlockCall, block: CompiledBlock, x: Any, choice: BlockOption, remade: tuple[str, ...]
) -> Option:
    return StageMeasurement(call.of_arguments(block.remaking(remade)), x).option(stage, _name(choice), remade)


def _name(choice: BlockOption) -> str:
    return f"keep {bytes_text(choice.tape_bytes)}"


def _remade(graph: Graph, choice: BlockOption) -> tuple[str, ...]:
    """The names of the storages that are recomputed."""
    return tuple(
        graph.storages[storage].name
        for number in sorted(choice.remade)
        for storage in graph.operations[number].outputs
        if storage not in choice.kept
    )


def is_compiled(module: nn.Module) -> bool:
    """Whether a module runs as compiled code, through `torch.compile(module)` or `module.compile()`."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
