"""What a plan keeps inside the blocks of a chain, and what it recomputes: by operation, module and line.

In: a plan for a chain whose stages have graphs, or for the graph of a whole step. Out: for each choice of blocks, rows
with the bytes of what is kept, and the bytes and times of what is recomputed.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from remat.planners import Plan
from remat.problem import Chain, Graph
from remat.schedule import Record, Run
from remat.units import bytes_text, seconds_text

__all__ = ["HEAD", "BlockContents", "block_contents"]

HEAD = ("storage", "what", "bytes", "time", "where", "module")
SHARE = 0.002  # of the largest storage: smaller ones, as statistics of norms, share a row


class BlockContents(NamedTuple):
    """The blocks that make the same choice, and a row for each storage."""

    blocks: str
    rows: tuple[tuple[str, ...], ...]


def block_contents(plan: Plan) -> list[BlockContents]:
    """The contents of blocks that keep part of their residuals; blocks with equal choices share an entry."""
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
    """The storages with these names, each counted as recomputed once."""
    return Counter(number for number, storage in enumerate(graph.storages) if storage.name in names)


def _again(graph: Graph, plan: Plan) -> Counter[int]:
    """How often a plan recomputes each storage of a graph."""
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
    """Rows in forward order; an operation's time is in the row of its first recomputed result."""
    needed = set(graph.saved)
    forward = graph.operations[: graph.turn]
    for each in forward:
        if any(storage in again for storage in each.outputs):
            needed.update(each.inputs)
    least = SHARE * max((graph.storages[storage].bytes for storage in needed if storage in graph.maker), default=0)
    small: dict[str, list[int]] = {}
    for each in forward:
        seconds = seconds_text(each.seconds)
        for storage in each.outputs:
            name, size = graph.storage_name(storage), graph.storages[storage].bytes
            if storage in again and size >= least:
                times = f" {again[storage]} times" if again[storage] > 1 else ""
                yield name, f"recomputed{times}", bytes_text(size), seconds, each.source, each.module
                seconds = ""
            elif storage in needed and size >= least:
                yield name, "kept", bytes_text(size), "", each.source, each.module
            elif storage in again or storage in needed:
                small.setdefault("recomputed" if storage in again else "kept", []).append(size)
    for what, sizes in small.items():
        yield f"{len(sizes)} small one{'s' * (len(sizes) > 1)}", what, bytes_text(sum(sizes)), "", "", ""
