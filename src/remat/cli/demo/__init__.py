"""`remat demo`: a character LSTM trained through 512 steps, by plain autograd and inside a memory budget."""

import argparse
import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from remat.cli.agreement import agreement
from remat.cli.output import write_report
from remat.cli.progress_bars import Bars
from remat.errors import FileError
from remat.planners import Plan
from remat.profiling import CallRecord, profile
from remat.reporting import MARK
from remat.reporting.tables import Table
from remat.units import bytes_text, count_text, to_bytes, to_count

if TYPE_CHECKING:
    from remat.cli.demo.model import CharModel

EXAMPLE = "remat demo --memory 4MiB"
HELP = "train a character LSTM through 512 steps, plainly and inside a memory budget, and compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--memory", default="4 MiB", help="the budget (default: 4 MiB)")
    parser.add_argument("--steps", type=int, default=512, help="characters to differentiate through (default: 512)")
    parser.add_argument("--hidden", type=int, default=48, help="size of the LSTM's state (default: 48)")
    parser.add_argument("--batch", type=int, default=24, help="passages at once (default: 24)")
    parser.add_argument("--iterations", type=int, default=5, help="training steps of each kind (default: 5)")
    parser.add_argument("--output", metavar="FILE", default="remat-demo.html", help="the page that is written")


def run(arguments: argparse.Namespace) -> int:
    """Train twice, compare, print the table, write the page."""
    from remat.cli.demo.model import CharModel

    for name in ("steps", "hidden", "batch", "iterations"):
        to_count(getattr(arguments, name), f"--{name}", least=1)
    to_bytes(arguments.memory, "--memory")
    output = Path(arguments.output)
    if output.exists() and MARK not in output.read_text(encoding="utf-8", errors="replace")[:200]:
        raise FileError(f"{output} exists and is no report of remat's: give another --output")
    model = CharModel(arguments.steps, arguments.hidden, arguments.batch)
    title = f"A character LSTM through {count_text(arguments.steps)} steps, inside {arguments.memory}"
    rows, call = _compare(model, arguments.memory, arguments.iterations)
    head = ("", "plain autograd", "remat")
    _print_table(title, head, rows)
    print(call.plan)
    table = Table("Plain autograd and remat", head, tuple(rows), numbers=False)
    write_report([call], str(output), form="html", title=title, labels=["remat.scan of the LSTM"], tables=[table])
    print(
        "next: open the page; put a loop of your own into remat.scan(step, init, xs, memory=...), as in "
        "docs/how-do-i-differentiate-a-loop.md; 'remat plan --help' plans without running",
        file=sys.stderr,
    )
    return 0


def _compare(model: "CharModel", memory: str, iterations: int) -> tuple[list[tuple[str, ...]], CallRecord]:
    """The rows of the table, and the recorded call of `remat.scan`."""
    from autograd import value_and_grad

    with Bars() as bars:

        def budget(params: Any) -> Any:
            return model.budget_loss(params, memory, bars)

        # Measured and planned before anything is timed; a budget that is too small raises here.
        value_and_grad(budget)(model.params)
        plain_losses, plain_seconds = _train(model, model.plain_loss, iterations, bars, "plain autograd")
        losses, seconds = _train(model, budget, iterations, bars, f"remat in {memory}")
        bars.say("measuring memory", 2)
        (_, expected), plain_peak = _traced(lambda: value_and_grad(model.plain_loss)(model.params))
        bars.step()
        (_, gradient), peak = _traced(lambda: value_and_grad(budget)(model.params))
        with profile() as recorded:
            value_and_grad(budget)(model.params)
        bars.step()
    call, equal = recorded.calls[0], agreement(gradient, expected)
    return _rows(plain_losses, losses, equal, plain_peak, peak, plain_seconds, seconds, call), call


def _rows(
    plain_losses: list[float],
    losses: list[float],
    equal: str,
    plain_peak: int,
    peak: int,
    plain_seconds: float,
    seconds: float,
    call: CallRecord,
) -> list[tuple[str, ...]]:
    """The rows of the table: what is compared, by plain autograd, by remat."""
    plan, trace = call.plan, call.trace
    assert isinstance(plan, Plan)
    assert trace is not None
    return [
        ("loss at first", f"{plain_losses[0]:.6f}", f"{losses[0]:.6f}"),
        (f"loss after {len(losses)} gradients", f"{plain_losses[-1]:.6f}", f"{losses[-1]:.6f}"),
        ("gradients", "", equal),
        ("peak memory", bytes_text(plain_peak), f"{bytes_text(peak)}, {plain_peak / peak:.1f} times less"),
        ("time of a gradient", f"{plain_seconds:.2f} s", f"{seconds:.2f} s, {seconds / plain_seconds:.2f} times"),
        (
            "forward steps",
            count_text(plan.problem.units),
            f"{count_text(plan.forward_steps)} planned, {count_text(trace.forward_steps)} done",
        ),
        ("plan", "every tape is held", plan.planner),
        ("claim", "", str(plan.claim)),
    ]


def _train(
    model: "CharModel", loss: Callable[[Any], Any], iterations: int, bars: Bars, name: str
) -> tuple[list[float], float]:
    """The losses of a training, and the seconds that each gradient took."""
    bars.say(f"training, {name}", iterations)
    began = perf_counter()
    losses = model.train(loss, iterations, bars.step)
    return losses, (perf_counter() - began) / iterations


def _traced(call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and the peak of the bytes that Python allocated during it."""
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
