"""Tables about the blocks of a profile: who holds the peak, what each drops, keeps and pays, what is inside one."""

from dataclasses import replace

from remat.profiling import Profile
from remat.profiling.model_record import ModelRecord
from remat.reporting.block_memory import Block, BlockMemory, block_memory
from remat.reporting.block_picture import NARROW, block_picture
from remat.reporting.dominating_tensor import dominating_tensor
from remat.reporting.model_tables import model_headline, model_tables, model_tips
from remat.reporting.table import Table
from remat.reporting.tape_table import tensor_table
from remat.units import bytes_text, count_text, seconds_text

__all__ = ["block_tables"]

MOST_BLOCKS = 60
MOST_TENSORS = 20
MOST_LISTED = 4  # inputs that have a row each; more of them share one
_RUNNING = (
    "The peak was measured in a whole step when the plan was tried. Running: what is computed around the blocks, "
    "recomputed inside them just in time, cotangents, and workspace of kernels."
)


def block_tables(profile: Profile, *, anonymous: bool) -> list[Table]:
    """The tables, the first with a picture and advice; none if the profile has no blocks."""
    memory = block_memory(profile)
    if not memory.blocks or (memory.seen and not memory.peak):
        return _of_step(memory, profile.models[0]) if len(profile.models) == 1 and not anonymous else []
    memory = _anonymous(memory) if anonymous else _short(memory)
    largest = max(memory.blocks, key=lambda block: block.size)
    if not memory.seen:
        return [_traced_blocks(memory, largest), _inside(largest)]
    if len(profile.models) == 1 and not anonymous:  # the tables of a plan have names and lines
        return _of_model(memory, profile.models[0])
    return [_at_peak(memory), _blocks(memory), _inside(largest)]


def _of_model(memory: BlockMemory, model: ModelRecord) -> list[Table]:
    """The tables of a model under a budget, whose plan says what to do with its blocks."""
    first, headline = _at_peak(memory), model_headline(model, memory)
    if headline is not None:
        time, held = seconds_text(memory.peak_time), bytes_text(memory.peak)
        title = f"Who holds the {held} of the blocks, {time} after the first of them began"
        first = replace(first, title=title, headline=str(headline), note=_RUNNING)
    recomputed = [_blocks(memory)] if any(block.recomputed for block in memory.blocks) else []
    return [replace(first, tips=(*model_tips(model, memory),)), *model_tables(model), *recomputed]


def _of_step(memory: BlockMemory, model: ModelRecord) -> list[Table]:
    """The tables of a model that is planned as one graph, without blocks."""
    tables, headline = model_tables(model), model_headline(model, memory)
    if not tables:
        return []
    words = "" if headline is None else str(headline)
    return [replace(tables[0], headline=words, tips=(*model_tips(model, memory),)), *tables[1:]]


def _traced_blocks(memory: BlockMemory, largest: Block) -> Table:
    """The blocks of a traced program, whose bytes are known but whose runs are not observed."""
    rows = [
        (block.name, bytes_text(block.inputs), bytes_text(block.size), block.where)
        for block in memory.blocks[:MOST_BLOCKS]
    ]
    saved, more = sum(block.size for block in memory.blocks), len(memory.blocks) - MOST_BLOCKS
    headline = (
        f"{count_text(len(memory.blocks))} blocks drop {bytes_text(saved)} until the backward; the most that one "
        f"brings back is {bytes_text(largest.size)}, {largest.name}"
    )
    note = (
        "These are the sizes in the traced program. XLA does not show when a block runs, how long its recomputation "
        "takes, and what it fuses: there are no times and no peak here (jax.profiler has times). Arguments are all "
        "that the block is given, parameters too."
    )
    note += f" {count_text(more)} more blocks are not shown." if more > 0 else ""
    tips = tuple(dominating_tensor(largest.tensors, largest.size, f"what {largest.name} needs"))
    head = ("block", "arguments", "dropped", "where")
    return Table("Blocks: what is dropped", head, tuple(rows), note, headline=headline, tips=tips)


def _anonymous(memory: BlockMemory) -> BlockMemory:
    blocks = tuple(
        replace(block, where="", tensors=tuple(replace(tensor, line="", module="") for tensor in block.tensors))
        for block in memory.blocks
    )
    return _renamed(replace(memory, blocks=blocks), [f"block {number}" for number, _ in enumerate(memory.blocks, 1)])


def _short(memory: BlockMemory) -> BlockMemory:
    """The blocks with function names shortened to the part after `<locals>.`, unless two would be the same."""
    names = [block.name.rpartition("<locals>.")[2] for block in memory.blocks]
    return _renamed(memory, names) if len({*names}) == len(names) else memory


def _renamed(memory: BlockMemory, names: list[str]) -> BlockMemory:
    new = {block.name: name for block, name in zip(memory.blocks, names, strict=True)}
    blocks = tuple(replace(block, name=new[block.name]) for block in memory.blocks)
    return BlockMemory(blocks, tuple(replace(each, block=new[each.block]) for each in memory.held))


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
    wide, narrow = block_picture(memory), block_picture(memory, NARROW)
    return Table(title, head, tuple(rows), "", True, wide, narrow, headline, tuple(memory.tips()))


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
    head = ("block", "what", "inputs held", "backward needs", "recomputed", "taking", "live again", "where")
    more = len(memory.blocks) - MOST_BLOCKS
    note = f"{count_text(more)} more blocks are not shown." if more > 0 else ""
    return Table("Blocks: what is dropped, what that saves and costs", head, tuple(rows), note)


def _returns(memory: BlockMemory, block: Block) -> str:
    back = [each for each in memory.held if each.block == block.name and each.what == "recomputed"]
    return f"{seconds_text(back[0].start)} to {seconds_text(back[0].stop)}" if back else "-"


def _inside(block: Block) -> Table:
    title = f"What the backward of {block.name} needs: {bytes_text(block.size)}, the largest first"
    return tensor_table(title, block.tensors, block.size)
