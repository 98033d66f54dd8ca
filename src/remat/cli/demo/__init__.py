"""`remat demo`: a character LSTM trained through 512 steps, by plain autograd and inside a memory budget."""

import argparse
import gc
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from remat.cli.agreement import agreement
from remat.cli.arguments import read_whole, refuse_to_overwrite
from remat.cli.output import write_report
from remat.cli.progress_bars import Bars
from remat.cli.timing import Times, interleaved
from remat.cli.words import PLAN_INDENT, show, tell
from remat.planners import Plan, SavePoints, plan
from remat.problem import Loop
from remat.profiling import CallRecord, profile
from remat.reporting.formats import check_path
from remat.reporting.table import Table
from remat.units import bytes_text, count_text, number_text, to_bytes, to_count

if TYPE_CHECKING:
    from remat.cli.demo.model import CharModel, Training

EXAMPLE = "remat demo --memory 4MiB"
HELP = "train a character LSTM through 512 steps, plainly and inside a memory budget, and compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--memory", metavar="SIZE", default="4 MiB", help="the budget (default: 4 MiB)")
    parser.add_argument("--steps", metavar="N", default="512", help="characters to go through (default: 512)")
    parser.add_argument("--hidden", metavar="N", default="48", help="size of the LSTM's state (default: 48)")
    parser.add_argument("--batch", metavar="N", default="24", help="passages at once (default: 24)")
    parser.add_argument("--iterations", metavar="N", default="5", help="training steps of each kind (default: 5)")
    parser.add_argument(
        "--output", metavar="FILE", default="remat-demo.html", help="the report (default: remat-demo.html)"
    )
    parser.add_argument("--force", action="store_true", help="write over an existing report")


def run(arguments: argparse.Namespace) -> int:
    """Train twice, compare, print the table, write the page."""
    from remat.cli.demo.model import CharModel, Training

    steps, hidden, batch, iterations = (
        to_count(read_whole(getattr(arguments, name), f"--{name}"), f"--{name}", least=1)
        for name in ("steps", "hidden", "batch", "iterations")
    )
    memory = to_bytes(arguments.memory, "--memory")
    check_path(arguments.output)
    refuse_to_overwrite(arguments.output, arguments.force)
    model = CharModel(steps, hidden, batch)
    title = f"A character LSTM through {count_text(steps)} steps, inside {bytes_text(memory)}"
    rows, plain, call = _compare(model, memory, iterations, Training)
    head = ("", "plain autograd", "remat")
    _print_table(title, head, rows)
    show(call.plan, indent=PLAN_INDENT)
    table = Table("Plain autograd and remat", head, tuple(rows), numbers=False)
    write_report(
        [plain, call],
        arguments.output,
        title=title,
        labels=["every tape held, as plain autograd does", "remat"],
        tables=[table],
        limit=memory,
    )
    tell(
        "next: open the page; put a loop of your own into remat.scan(step, init, xs, memory=...), as in "
        "docs/how-do-i-differentiate-a-loop.md; 'remat plan --help' plans without running"
    )
    return 0


def _compare(
    model: "CharModel", memory: int, iterations: int, training: "type[Training]"
) -> tuple[list[tuple[str, ...]], CallRecord, CallRecord]:
    """The rows of the table, and the recorded calls: with all tapes held, as in plain autograd, and in the budget."""
    from autograd import value_and_grad

    with Bars() as bars:

        def budget(params: Any) -> Any:
            return model.scan_loss(params, memory=memory, progress=bars)

        # Measure and plan before anything is timed; a budget that is too small raises here.
        bars.say("measuring and planning")
        value_and_grad(budget)(model.params)
        bars.say("training, in turns", 2 * iterations, part="this gradient")
        trainings = [training(model, loss) for loss in (model.plain_loss, budget)]
        times = interleaved([each.step for each in trainings], iterations, bars.step)
        bars.say("measuring memory", 3, part="this gradient")
        (_, expected), plain_peak = _traced(lambda: value_and_grad(model.plain_loss)(model.params))
        bars.step()
        whole = plan(Loop(len(model.xs)), slots=0, planner=SavePoints(()))  # one range: every tape is held
        plain_call, _ = _recorded(model, {"progress": bars, "plan": whole}, bars)
        call, gradient = _recorded(model, {"progress": bars, "memory": memory}, bars)
    losses, equal = [each.losses for each in trainings], agreement(gradient, expected)
    return _rows(losses, times, equal, plain_peak, call), plain_call, call


def _recorded(model: "CharModel", how: dict[str, Any], bars: Bars) -> tuple[CallRecord, dict[str, Any]]:
    """The recorded `remat.scan` call of one gradient, with its allocations, and the gradient."""
    from autograd import value_and_grad

    gc.collect()
    with profile(memory=True) as recorded:
        _, gradient = value_and_grad(lambda params: model.scan_loss(params, **how))(model.params)
    bars.step()
    return recorded.calls[0], gradient


def _rows(
    losses: list[list[float]], times: list[Times], equal: str, plain_peak: int, call: CallRecord
) -> list[tuple[str, ...]]:
    """The rows of the table: what is compared, the value of plain autograd, and that of remat."""
    plan, trace = call.plan, call.trace
    assert isinstance(plan, Plan)
    assert trace is not None
    peak = max(trace.peak, trace.totals.allocated or 0)
    ratio = number_text(plain_peak / peak)
    return [
        ("loss at first", *(f"{each[0]:.6f}" for each in losses)),
        (f"loss after {len(losses[0])} gradients", *(f"{each[-1]:.6f}" for each in losses)),
        ("gradients", "", equal),
        ("peak memory", bytes_text(plain_peak), f"{bytes_text(peak)}, {ratio} times less"),
        ("time of a gradient", str(times[0]), f"{times[1]}, {times[1].median / times[0].median:.2f} times plain"),
        (
            "forward steps",
            count_text(plan.problem.units),
            f"{count_text(plan.forward_steps)} planned, {count_text(trace.forward_steps)} done",
        ),
        ("plan", "every tape is held", f"{plan.planner}, {plan.claim.short}"),
    ]


def _traced(call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and the peak bytes that Python allocated during it."""
    gc.collect()
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _print_table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
