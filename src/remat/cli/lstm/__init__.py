"""`remat lstm`: an LSTM over a long sequence, split by save points: less live memory, the same loss and gradients."""

import argparse
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remat.cli.agreement import agreement
from remat.cli.arguments import refuse_to_overwrite
from remat.cli.output import write_report
from remat.cli.progress_bars import Bars
from remat.errors import InfeasibleError, ProblemError, StepError
from remat.measuring import loop_of
from remat.planners import Auto, Plan, SavePoints, plan, save_points
from remat.problem import Level, Loop, Memory
from remat.profiling import CallRecord, profile
from remat.reporting.formats import check_path
from remat.schedule import Trace
from remat.units import bytes_text, count_text, to_count

if TYPE_CHECKING:
    from remat.cli.lstm.model import Lstm

EXAMPLE = "remat lstm --seq-len 2048 --checkpoints 7 --compare --report lstm.html"
HELP = "run an LSTM over a long sequence, split by save points, and show what is live with and without them"
MORE = 1.1  # forward steps that --optimal may spend, in those of even save points
FRAMEWORKS = ("numpy", "torch", "jax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--seq-len", type=int, default=2048, metavar="N", help="steps of the LSTM (default: 2048)")
    parser.add_argument("--checkpoints", type=int, default=7, metavar="K", help="save points; 0: none (default: 7)")
    parser.add_argument("--hidden", type=int, default=32, metavar="N", help="size of the LSTM's state (default: 32)")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="sequences at once (default: 16)")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="numpy", help="what differentiates (default: numpy)")
    parser.add_argument("--optimal", action="store_true", help="also let the planner place them, in less memory")
    parser.add_argument("--compare", action="store_true", help="run without save points too, and put both side by side")
    parser.add_argument("--report", metavar="FILE", help="write a report with the liveness charts")
    parser.add_argument("--force", action="store_true", help="write over an existing report")


def run(arguments: argparse.Namespace) -> int:
    """Run, print, and write the report; Ctrl-C leaves a report of what was done so far."""
    steps = to_count(arguments.seq_len, "--seq-len", least=1)
    for name in ("hidden", "batch"):
        to_count(getattr(arguments, name), f"--{name}", least=1)
    count = to_count(arguments.checkpoints, "--checkpoints")
    positions = save_points(steps, count)
    if arguments.report:
        check_path(arguments.report)
        refuse_to_overwrite(arguments.report, arguments.force)
    if arguments.optimal and not count:
        raise ProblemError("--optimal places save points in the memory that --checkpoints takes: give at least 1")
    new_model = _model_on(arguments.framework)
    new_model(8, arguments.hidden, arguments.batch).gradient(plan(Loop(8), slots=2))  # a first time takes longer
    model = new_model(steps, arguments.hidden, arguments.batch)
    ways: list[_Way] = []
    try:
        _run_ways(model, positions, arguments, ways)
    except KeyboardInterrupt:
        _report([way for way in ways if way.call.trace], arguments.report)
        raise
    _report(ways, arguments.report)
    return 0


def _model_on(framework: str) -> "type[Lstm]":
    """The model on that framework."""
    if framework == "numpy":
        from remat.cli.lstm.model import Lstm

        return Lstm
    name = {"torch": "PyTorch", "jax": "JAX"}[framework]
    try:
        import_module(framework)
    except ImportError as error:
        raise StepError(f"--framework {framework} needs {name}: pip install 'remat[{framework}]' ({error})") from error
    if framework == "jax":
        from remat.cli.lstm.jax_model import JaxLstm

        return JaxLstm
    from remat.cli.lstm.torch_model import TorchLstm

    return TorchLstm


@dataclass
class _Way:
    """One way to run the model, and what came of it."""

    name: str
    plan: Plan
    call: CallRecord
    loss: float = 0.0
    gradient: Any = None
    allocated: int | None = None  # the most bytes, by the framework's meter

    @property
    def trace(self) -> Trace:
        """What happened."""
        found = self.call.trace
        assert found is not None
        return found

    @property
    def seconds(self) -> float:
        """How long all ops took."""
        return self.trace.seconds


def _run_ways(model: "Lstm", positions: list[int], arguments: argparse.Namespace, ways: list[_Way]) -> None:
    """Run with the save points; without them for a comparison; and where the planner puts them."""
    steps, count = len(model.xs), len(positions)
    if steps % (count + 1):
        print(
            f"{count_text(steps)} steps can't be evenly divided into {count + 1} sections: they get "
            f"{steps // (count + 1)} or {steps // (count + 1) + 1} steps each"
        )
    if arguments.compare and count:
        _run(model, "without checkpoints", SavePoints(()), Loop(steps), Memory(slots=0), ways)
        _print(ways[-1], model)
    name = f"{count} checkpoint{'s' * (count != 1)}" if count else "without checkpoints"
    even = _run(model, name, SavePoints(tuple(positions)), Loop(steps), Memory(slots=count), ways)
    _print(even, model, ways[0] if len(ways) > 1 else None)
    if arguments.optimal:
        _run_optimal(model, even, ways)


def _run_optimal(model: "Lstm", even: _Way, ways: list[_Way]) -> None:
    """Let the planner place save points in the least memory that costs little more, and say what is gained.

    In the same memory there may be nothing to gain: a step whose tape does not fit at the turn runs twice in any case.
    """
    loop = loop_of(even.trace)
    assert loop is not None
    by_hand = replace(even.plan, problem=loop).simulate().peak
    same = plan(loop, by_hand)
    least = _least_memory(loop, int(MORE * even.trace.forward_steps), by_hand)
    best = _run(model, "placed by the planner", Auto(most=0), loop, Memory(least), ways)
    _print(best, model, ways[0] if len(ways) > 2 else None)
    fewer = 1 - same.recomputed / max(1, even.trace.recomputed)
    more = best.trace.forward_steps / even.trace.forward_steps - 1
    print(
        f"gain:             {by_hand / max(1, best.trace.peak):.1f} times less memory than even save points, "
        f"for {more:+.1%} forward steps"
    )
    found = f"{fewer:.0%} less recomputation" if fewer > 0 else "no better placement was found"
    print(f"in the same:      {found} in the {bytes_text(by_hand)} of even save points")


def _least_memory(loop: Loop, steps: int, enough: int) -> int:
    """The least bytes in which the planner runs no more than so many forward steps."""
    low, high = 0, enough
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        try:
            fits = plan(loop, middle, planner=Auto(most=0)).forward_steps <= steps
        except InfeasibleError:
            fits = False
        low, high = (low, middle) if fits else (middle, high)
    return high


def _run(model: "Lstm", name: str, planner: Any, loop: Loop, memory: Memory, ways: list[_Way]) -> _Way:
    with Bars() as bars, profile() as recorded:
        bars.say(name)
        made = plan(loop, memory, planner=planner, progress=bars)
        try:
            loss, gradient = model.gradient(made, bars)
        finally:
            if recorded.calls:
                ways.append(_Way(name, made, recorded.calls[0]))
        way = ways[-1]
        way.loss, way.gradient = loss, gradient
    if model.metered:  # in a run of its own: a meter that counts every op makes the ops slow
        with Bars() as bars, profile(memory=True) as recorded:
            bars.say(f"{name}, memory")
            model.gradient(made, bars)
        trace = recorded.calls[0].trace
        way.allocated = None if trace is None else trace.totals.allocated
    return way


def _print(way: _Way, model: "Lstm", without: _Way | None = None) -> None:
    """The numbers of one way, and how it compares with another."""
    trace = way.trace
    print(f"{way.name}, {count_text(len(model.xs))} steps")
    print(f"loss:             {way.loss:.15f}")
    print(f"peak live memory: {bytes_text(trace.peak)}")
    if way.allocated is not None:
        print(f"allocated:        {bytes_text(way.allocated)} at the most, every storage counted")
    if without is not None:
        print(f"ratio:            {trace.peak / without.trace.peak:.3f} of that without checkpoints, measured")
        print(f"gradients:        {agreement(way.gradient, without.gradient)}")
        print(f"time ratio:       {way.seconds / without.seconds:.2f} times that without checkpoints")
    elif trace.keeps:
        loop = loop_of(trace)
        assert loop is not None
        all_tapes = plan(loop, Memory(levels=[Level("ram")]), planner="keep-all").peak
        print(f"ratio:            {trace.peak / all_tapes:.3f} of the {bytes_text(all_tapes)} without, predicted")
    else:
        print("ratio:            1 (nothing is split)")
    print(
        f"time:             {way.seconds:.2f} s for a gradient; {count_text(trace.forward_steps)} forward steps, "
        f"{count_text(trace.recomputed)} of them recomputed"
    )


def _report(ways: list[_Way], path: str | None) -> None:
    if path and ways:
        title = "An LSTM with and without save points" if len(ways) > 1 else f"An LSTM, {ways[0].name}"
        write_report([way.call for way in ways], path, title=title, labels=[way.name for way in ways])
    elif not path:
        print("next: --report lstm.html draws what is live when", file=sys.stderr)
