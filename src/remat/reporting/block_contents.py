"""What a plan keeps inside of the blocks of a chain, and what it makes again: by operation, module and line.

In: a plan for a chain whose stages have graphs, or for the graph of a whole step. Out: for each choice of blocks, rows
with the bytes of what is kept, and the bytes and microseconds of what is made again.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from remat.planners import Plan
from remat.problem import Chain, Graph
from remat.schedule import Record, Run
from remat.units import bytes_text

__all__ = ["HEAD", "BlockContents", "block_contents"]

HEAD = ("storage", "what", "bytes", "microseconds", "module", "line")
SHARE = 0.002  # of the largest storage: smaller ones, as statistics of norms, share a row


class BlockContents(NamedTuple):
    """Blocks in a row that keep the same, and a row for each storage."""

    blocks: str
    rows: tuple[tuple[str, ...], ...]


def block_contents(plan: Plan) -> list[BlockContents]:
    """The contents of blocks that keep a part; equal choices of other blocks are not repeated."""
    chain = plan.problem
    if isinstance(chain, Graph):
        return [BlockContents("the whole graph", tuple(_rows(chain, _again(chain, plan))))]
    if not isinstance(chain, Chain):
        return []
    options = {op.start: op.option for op in plan.schedule if isinstance(op, Record)}
    names: dict[tuple[Graph, tuple[str, ...]], list[str]] = {}
    for number, stage in enumerate(chain.stages):
        option = stage.options[options.get(number, 0)]
        if stage.graph is not None and option.remade:
            names.setdefault((stage.graph, option.remade), []).append(stage.name)
    return [
        BlockContents(_blocks(blocks), tuple(_rows(graph, _named(graph, remade))))
        for (graph, remade), blocks in names.items()
    ]


def _named(graph: Graph, names: Collection[str]) -> Counter[int]:
    """The storages with these names, each of which is made again once."""
    return Counter(number for number, storage in enumerate(graph.storages) if storage.name in names)


def _again(graph: Graph, plan: Plan) -> Counter[int]:
    """How often a plan makes each storage of a graph again."""
    runs = Counter(op.operation for op in plan.schedule if isinstance(op, Run))
    return Counter(
        {
            storage: runs[number] - 1
            for number, each in enumerate(graph.operations[: graph.turn])
            for storage in each.outputs
            if runs[number] > 1
        }
    )


def _blocks(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} blocks, {names[0]} to {names[-1]}"


def _rows(graph: Graph, again: Counter[int]) -> Iterator[tuple[str, ...]]:
    """Rows in the order of the forward; an operation's time stands beside its first result that is made again."""
    needed = set(graph.saved)
    forward = graph.operations[: graph.turn]
    for each in forward:
        if any(storage in again for storage in each.outputs):
            needed.update(each.inputs)
    least = SHARE * max((graph.storages[storage].bytes for storage in needed if storage in graph.maker), default=0)
    small: dict[str, list[int]] = {}
    for each in forward:
        seconds = f"{1e6 * each.seconds:.0f}"
        for storage in each.outputs:
            name, size = graph.storage_name(storage), graph.storages[storage].bytes
            if storage in again and size >= least:
                times = f" {again[storage]} times" if again[storage] > 1 else ""
                yield name, f"made again{times}", bytes_text(size), seconds, each.module, each.source
                seconds = ""
            elif storage in needed and size >= least:
                yield name, "kept", bytes_text(size), "", each.module, each.source
            elif storage in again or storage in needed:
                small.setdefault("made again" if storage in again else "kept", []).append(size)
    for what, sizes in small.items():
        yield f"{len(sizes)} small ones", what, bytes_text(sum(sizes)), "", "", ""
