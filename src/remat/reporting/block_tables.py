"""Tables about the blocks of a profile: who holds the peak, what each drops, keeps and pays, what is inside of one."""

from dataclasses import replace

from remat.profiling import Profile
from remat.reporting.block_memory import Block, BlockMemory, block_memory
from remat.reporting.block_picture import block_picture
from remat.reporting.table import Table
from remat.reporting.tape_table import tensor_table
from remat.units import bytes_text, count_text, seconds_text

__all__ = ["block_tables"]

MOST_BLOCKS = 60
MOST_TENSORS = 20
MOST_LISTED = 4  # inputs that have a row each; more of them share one


def block_tables(profile: Profile, *, anonymous: bool) -> list[Table]:
    """The tables, with a picture and advice at the first; none if the profile has no blocks."""
    memory = block_memory(profile)
    if not memory.blocks or not memory.peak:
        return []
    if anonymous:
        memory = _anonymous(memory)
    return [_at_peak(memory), _blocks(memory), _inside(max(memory.blocks, key=lambda block: block.size))]


def _anonymous(memory: BlockMemory) -> BlockMemory:
    names = {block.name: f"block {number}" for number, block in enumerate(memory.blocks, 1)}
    blocks = [
        replace(
            block,
            name=names[block.name],
            where="",
            tensors=tuple(replace(tensor, line="", module="") for tensor in block.tensors),
        )
        for block in memory.blocks
    ]
    return BlockMemory(tuple(blocks), tuple(replace(each, block=names[each.block]) for each in memory.held))


def _at_peak(memory: BlockMemory) -> Table:
    peak, where = memory.peak, {block.name: block.where for block in memory.blocks}
    live, rows = memory.at(memory.peak_time), list[tuple[str, ...]]()
    inputs = [each for each in live if each.what == "inputs"]
    if len(inputs) > MOST_LISTED:
        live = [each for each in live if each.what != "inputs"]
    for each in live[:MOST_TENSORS]:
        rows.append((each.block, each.what, bytes_text(each.size), f"{each.size / peak:.1%}", where[each.block]))
    rest, shared = live[MOST_TENSORS:], inputs if len(inputs) > MOST_LISTED else []
    for words, group in ((f"{len(rest)} more", rest), (f"{len(shared)} blocks", shared)):
        if group:
            size = sum(each.size for each in group)
            rows.append((words, group[0].what, bytes_text(size), f"{size / peak:.1%}", ""))
    head = ("block", "what", "bytes", "share", "where")
    title = f"Who holds it at the peak, {seconds_text(memory.peak_time)} after the first block began"
    headline = f"Blocks hold {memory.headline}"
    return Table(title, head, tuple(rows), picture=block_picture(memory), headline=headline, tips=tuple(memory.tips()))


def _blocks(memory: BlockMemory) -> Table:
    rows = [
        (
            block.name,
            "dropped" if block.dropped else "kept",
            bytes_text(block.inputs),
            bytes_text(block.size),
            count_text(block.recomputed),
            seconds_text(block.seconds) if block.recomputed else "-",
            _returns(memory, block),
            block.where,
        )
        for block in memory.blocks[:MOST_BLOCKS]
    ]
    head = ("block", "what", "inputs held", "backward needs", "recomputed", "for", "came back at", "where")
    more = len(memory.blocks) - MOST_BLOCKS
    note = f"{count_text(more)} more blocks are not shown." if more > 0 else ""
    return Table("Blocks: what is dropped, what that saves and costs", head, tuple(rows), note)


def _returns(memory: BlockMemory, block: Block) -> str:
    back = [each for each in memory.held if each.block == block.name and each.what == "recomputed"]
    return f"{seconds_text(back[0].start)} to {seconds_text(back[0].stop)}" if back else "-"


def _inside(block: Block) -> Table:
    title = f"What the backward of {block.name} needs: {bytes_text(block.size)}, the largest first"
    return tensor_table(title, block.tensors, block.size)
