"""What a plan keeps inside of the blocks of a chain, and what it makes again: by operation, module and line.

In: a plan for a chain whose stages have graphs. Out: for each choice of blocks, rows with the bytes of what is kept,
and the bytes and microseconds of what is made again.
"""

from collections.abc import Iterator
from typing import NamedTuple

from remat.planners import Plan
from remat.problem import Chain, Graph
from remat.schedule import Record
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
    if not isinstance(chain, Chain):
        return []
    options = {op.start: op.option for op in plan.schedule if isinstance(op, Record)}
    names: dict[tuple[Graph, tuple[str, ...]], list[str]] = {}
    for number, stage in enumerate(chain.stages):
        option = stage.options[options.get(number, 0)]
        if stage.graph is not None and option.remade:
            names.setdefault((stage.graph, option.remade), []).append(stage.name)
    return [BlockContents(_blocks(blocks), tuple(_rows(*choice))) for choice, blocks in names.items()]


def _blocks(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} blocks, {names[0]} to {names[-1]}"


def _rows(graph: Graph, remade: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Rows in the order of the forward; an operation's time stands beside its first result that is made again."""
    again, needed = set(remade), set(graph.saved)
    forward = graph.operations[: graph.turn]
    for each in forward:
        if any(graph.storages[storage].name in again for storage in each.outputs):
            needed.update(each.inputs)
    least = SHARE * max((graph.storages[storage].bytes for storage in needed if storage in graph.maker), default=0)
    small = [0, 0]
    for each in forward:
        seconds = f"{1e6 * each.seconds:.0f}"
        for storage in each.outputs:
            name, size = graph.storages[storage].name, graph.storages[storage].bytes
            if name in again:
                yield name, "made again", bytes_text(size), seconds, each.module, each.source
                seconds = ""
            elif storage in needed and size >= least:
                yield name, "kept", bytes_text(size), "", each.module, each.source
            elif storage in needed:
                small = [small[0] + 1, small[1] + size]
    if small[0]:
        yield f"{small[0]} small ones", "kept", bytes_text(small[1]), "", "", ""
