"""What a plan does with the blocks of a chain: a line for each run of equal ones."""

from collections import Counter
from collections.abc import Iterator, Sequence

from remat.planners import Plan
from remat.planners.chain.record_all import RecordAll
from remat.problem import Chain, Graph, Memory
from remat.reporting.block_contents import HEAD, block_contents
from remat.schedule import Advance, Pullback, Record, Run, simulate
from remat.units import bytes_text, seconds_text

__all__ = ["aligned", "block_table"]


def block_table(plan: Plan, *, contents: bool = False, given: tuple[int, int, int] | None = None) -> str:
    """The table of a plan for a chain, or for the graph of a whole step, and where its peak is.

    With `contents` it lists what blocks keep that keep a part. `given` are of a model: its budget, the bytes of what it
    returns, and the measured peak.
    """
    chain = plan.problem
    inside, beside = _contents(plan, listed=contents), [] if given is None else [_beside(*given)]
    if isinstance(chain, Graph):
        return "\n".join([*_summary_of_step(chain, plan), *beside, *inside, "", *_peak_of_step(chain, plan)])
    assert isinstance(chain, Chain)
    rows = [("block", "what", "runs", "tape", "forward", "backward"), *_rows(chain, plan)]
    return "\n".join([*_summary(chain, plan), *beside, "", *aligned(rows), *inside, "", *_peak(chain, plan)])


def _beside(budget: int, outputs: int, peak: int) -> str:
    """What of a model's budget is not the plan's, and what was measured of the whole."""
    returned = f": {bytes_text(budget - outputs)} for the plan and {bytes_text(outputs)} for what the model returns"
    return f"memory={bytes_text(budget)}{returned if outputs else ''}; a step by the plan took {bytes_text(peak)}"


def _contents(plan: Plan, *, listed: bool) -> Iterator[str]:
    """What blocks keep that keep a part, or how to see that."""
    found = block_contents(plan)
    if found and not listed:
        yield "\nWhat is made again inside of blocks: remat.explain(..., contents=True)"
        return
    for blocks, rows in found:
        yield f"\n{blocks}:"
        yield from aligned([HEAD, *rows])


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of a table as lines whose columns begin below each other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _summary(chain: Chain, plan: Plan) -> Iterator[str]:
    plain = RecordAll().plan(chain, Memory.of(10**18))
    yield f"{chain.title}, {plan.memory}: {plan.claim}"
    yield (
        f"predicted peak {bytes_text(plan.peak)}, {plan.peak / plain.peak:.0%} of the {bytes_text(plain.peak)} that "
        f"keeping everything takes, at {plan.seconds / plain.seconds:.3f} times its time"
    )


def _summary_of_step(graph: Graph, plan: Plan) -> Iterator[str]:
    plain, again = graph.plain_peak, plan.seconds - graph.advance_time(0, graph.units)
    yield f"the whole model as one graph of {graph.title}, {plan.memory}: {plan.claim}"
    yield (
        f"predicted peak {bytes_text(plan.peak)}, {plan.peak / plain:.0%} of the {bytes_text(plain)} that keeping "
        f"everything takes, at {plan.seconds / (plan.seconds - again):.3f} times its time; {plan.reason}"
    )


def _peak_of_step(graph: Graph, plan: Plan) -> Iterator[str]:
    trace = simulate(plan.schedule, graph)
    op = next(event.op for event in trace if event.index == trace.totals.peak_index)
    if isinstance(op, Run):
        yield f"The peak is while operation {op.operation} runs: {graph.operations[op.operation].where}."


def _rows(chain: Chain, plan: Plan) -> Iterator[tuple[str, ...]]:
    runs: Counter[int] = Counter()
    first: dict[int, bool] = {}  # whether the first run of a stage is recorded
    options: dict[int, int] = {}
    for op in plan.schedule:
        if isinstance(op, Advance | Record):
            for i in range(op.start, op.stop):
                runs[i] += 1
                first.setdefault(i, isinstance(op, Record))
                if isinstance(op, Record):
                    options[i] = op.option
    groups: list[tuple[int, int, tuple[str, ...]]] = []
    for i, stage in enumerate(chain.stages):
        option = stage.options[options[i]]
        what = ("kept" if first[i] else "computed again") + (", a part made again" if option.remade else "")
        row: tuple[str, ...] = (
            what,
            str(runs[i]),
            bytes_text(option.tape),
            seconds_text(stage.forward),
            seconds_text(option.backward),
        )
        if groups and groups[-1][2] == row and stage.repeatable:
            groups[-1] = (groups[-1][0], i, row)
        else:
            groups.append((i, i, row))
    for start, stop, row in groups:
        name = _name(chain, start)
        yield (name if start == stop else f"{name} to {chain.unit_name(stop) or f'stage {stop}'}", *row)


def _name(chain: Chain, stage: int) -> str:
    """The name of a stage; one that is a number, as in a sequence of modules, says that it is a block's."""
    name = chain.unit_name(stage) or f"stage {stage}"
    if not chain.stages[stage].repeatable and stage in (0, chain.units - 1):
        return name
    return f"block {name}" if name.replace(".", "").isdigit() else name


def _peak(chain: Chain, plan: Plan) -> Iterator[str]:
    trace = simulate(plan.schedule, chain)
    op = next(event.op for event in trace if event.index == trace.totals.peak_index)
    if not hasattr(op, "start"):
        return
    stage = chain.stages[op.start]
    what = "is pulled back" if isinstance(op, Pullback) else "runs"
    yield f"The peak is while {_name(chain, op.start)} {what}."
    if not stage.repeatable and op.start == chain.units - 1:
        yield (
            "That is after the blocks, where no choice of blocks helps: often the logits of a language model and their "
            "softmax. Compute the loss in chunks of the sequence, as a remat.scan over them that sums, and the logits "
            "of one chunk are live at a time."
        )
