"""Tables about a model under a budget: what its plan does with each block, what is kept and recomputed inside, and what
another budget would do.

In: the record of a model in a profile. Out: tables, a headline for the page, and advice in sentences.
"""

from collections.abc import Iterator
from dataclasses import replace

from remat.errors import InfeasibleError
from remat.planners import Plan, plan
from remat.problem import Chain
from remat.profiling.model_record import ModelRecord
from remat.reporting.block_contents import HEAD, block_contents
from remat.reporting.block_memory import BlockMemory
from remat.reporting.block_table import PLAN_HEAD, peak_sentences, plan_rows
from remat.reporting.headline import Headline
from remat.reporting.table import Table
from remat.units import bytes_text

__all__ = ["model_headline", "model_tables", "model_tips"]

MOST_CONTENTS = 4  # tables of what is inside blocks
LESS, MORE = 0.75, 1.5  # of the budget, for which others are planned


def model_headline(model: ModelRecord, memory: BlockMemory) -> Headline | None:
    """The measured peak of a step inside its budget, and what it is made of; None if it was not measured."""
    if model.peak is None or model.memory is None or memory.peak + model.outputs > model.peak:
        return None
    running = model.peak - memory.peak - model.outputs
    parts = ("held by blocks", memory.peak), ("returned", model.outputs), ("running", running)
    return Headline(model.peak, model.memory, parts)


def model_tips(model: ModelRecord, memory: BlockMemory) -> Iterator[str]:
    """Where the peak of the plan is, and what less and more memory would do."""
    yield from peak_sentences(model.plan, {block.name: block.where for block in memory.blocks})
    chain = model.plan.problem
    if model.memory is None or not isinstance(chain, Chain):
        return
    beside = model.memory - (model.plan.memory.device.capacity or model.memory)  # of the budget, and not the plan's
    try:
        fewer = plan(chain, max(1, int(LESS * model.memory) - beside))
        yield f"To use less memory, give auto_checkpoint less: {_other(fewer, model, beside)}."
    except InfeasibleError as error:
        least = bytes_text(int(error.minimum) + beside, up=True)
        yield f"It cannot use much less memory: this model needs about {least} with these inputs."
    if model.plan.recomputed or any(op.option for op in model.plan.schedule if hasattr(op, "option")):
        other = plan(chain, int(MORE * model.memory) - beside)
        if other.seconds < 0.999 * model.plan.seconds:
            yield f"To be faster, give it more: {_other(other, model, beside)}."


def _other(other: Plan, model: ModelRecord, beside: int) -> str:
    ratio = other.seconds / model.plan.seconds
    return f'memory="{bytes_text(other.peak + beside, up=True)}" would take {ratio:.2f} times as long'


def model_tables(model: ModelRecord) -> list[Table]:
    """What the plan does with each block, and what is kept and recomputed inside those that keep a part."""
    tables, chain = list[Table](), model.plan.problem
    if isinstance(chain, Chain):
        title = f"The plan of {model.name}: what it does with each block"
        tables.append(Table(title, PLAN_HEAD, tuple(plan_rows(chain, model.plan)), str(model.plan.claim)))
    found = block_contents(model.plan)
    for blocks, rows in found[:MOST_CONTENTS]:
        tables.append(Table(f"Inside {blocks}: what is kept and what is recomputed", HEAD, rows))
    if tables and len(found) > MOST_CONTENTS:
        note = f"{len(found) - MOST_CONTENTS} more kinds of blocks: remat.explain(model, contents=True)."
        tables[-1] = replace(tables[-1], note=note)
    return tables
