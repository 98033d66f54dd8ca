"""What a plan does with the blocks of a chain: a line for each group of consecutive equal blocks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from remat.planners import Plan
from remat.planners.chain.record_all import RecordAll
from remat.problem import Chain, Graph, Memory
from remat.reporting.block_contents import HEAD, block_contents
from remat.schedule import Advance, Pullback, Record, Run, simulate
from remat.units import bytes_text, seconds_text

__all__ = ["PLAN_HEAD", "aligned", "block_table", "peak_sentences", "plan_rows"]

PLAN_HEAD = ("block", "what", "runs", "tape", "forward", "backward")


def block_table(plan: Plan, *, contents: bool = False, given: tuple[int, int, int] | None = None) -> str:
    """The table of a plan for a chain, or for the graph of a whole step, and where its peak is.

    With `contents`, it also lists what is kept inside blocks that keep part of their residuals. `given` holds the
    budget of a model, the bytes of what it returns, and the measured peak.
    """
    chain = plan.problem
    inside, beside = _contents(plan, listed=contents), [] if given is None else [_beside(*given)]
    if isinstance(chain, Graph):
        return "\n".join([*_summary_of_step(chain, plan), *beside, *inside, "", *peak_sentences(plan)])
    assert isinstance(chain, Chain)
    rows = [PLAN_HEAD, *plan_rows(chain, plan)]
    return "\n".join([*_summary(chain, plan), *beside, "", *aligned(rows), *inside, "", *peak_sentences(plan)])


def _beside(budget: int, outputs: int, peak: int) -> str:
    """How much of a model's budget the plan does not get, and the measured peak of a step."""
    returned = f": {bytes_text(budget - outputs)} for the plan and {bytes_text(outputs)} for what the model returns"
    return f"memory={bytes_text(budget)}{returned if outputs else ''}; a step by the plan took {bytes_text(peak)}"


def _contents(plan: Plan, *, listed: bool) -> Iterator[str]:
    """What is kept inside blocks that keep part of their residuals; unless `listed`, how to see it."""
    found = block_contents(plan)
    if found and not listed:
        yield "\nWhat is kept and recomputed inside blocks: remat.explain(..., contents=True)"
        return
    for blocks, rows in found:
        yield f"\n{blocks}:"
        yield from aligned([HEAD, *rows])


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of a table as lines with aligned columns."""
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


def plan_rows(chain: Chain, plan: Plan) -> Iterator[tuple[str, ...]]:
    """A row for each run of blocks with which a plan does the same; the times are of the first run and its pullback."""
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
        what = ("kept" if first[i] else "recomputed") + (" in part" if option.remade and first[i] else "")
        row: tuple[str, ...] = (
            what,
            str(runs[i]),
            bytes_text(option.tape),
            seconds_text(option.record if first[i] else stage.forward),
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
    """The name of a stage; a number, as in a sequence of modules, becomes "block 3"."""
    name = chain.unit_name(stage) or f"stage {stage}"
    if not chain.stages[stage].repeatable and stage in (0, chain.units - 1):
        return name
    return f"block {name}" if name.replace(".", "").isdigit() else name


def peak_sentences(plan: Plan, lines: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Where the peak of a plan is, with the line of that block, and what to do if most of it is not in blocks."""
    problem = plan.problem
    if isinstance(problem, Graph):
        return [*_peak_of_step(problem, plan)]
    return [*_peak(problem, plan, lines)] if isinstance(problem, Chain) else []


def _peak(chain: Chain, plan: Plan, lines: Mapping[str, str]) -> Iterator[str]:
    trace = simulate(plan.schedule, chain)
    op = next(event.op for event in trace if event.index == trace.totals.peak_index)
    if not hasattr(op, "start"):
        return
    stage = chain.stages[op.start]
    what = "is pulled back" if isinstance(op, Pullback) else "runs"
    line = lines.get(stage.name, "")
    name, place = _name(chain, op.start), f" ({line})" * bool(line)
    is_around = name.endswith("the blocks")
    yield (
        f"The peak is in what runs {name}{place}, while it {what}."
        if is_around
        else f"The peak is while {name} {what}{place}."
    )
    own = stage.options[0].tape + chain.pulling_size(op.start, op.start + 1)
    if not stage.repeatable and op.start == chain.units - 1 and 2 * own >= plan.peak:
        yield (
            f"That is after the blocks, where {bytes_text(own)} are live whatever the plan does with them: often the "
            "logits of a language model and their softmax. Compute the loss in chunks of the sequence, as a remat.scan "
            "over them that sums, and the logits of one chunk are live at a time."
        )
