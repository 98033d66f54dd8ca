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
MOST_EXTRA = 1.1  # times the forward steps of even save points that --optimal may run
FRAMEWORKS = {  # title, module, class
    "numpy": ("NumPy", "model", "Lstm"),
    "torch": ("PyTorch", "torch_model", "TorchLstm"),
    "jax": ("JAX", "jax_model", "JaxLstm"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--seq-len", type=int, default=2048, metavar="N", help="steps of the LSTM (default: 2048)")
    parser.add_argument("--checkpoints", type=int, default=7, metavar="K", help="save points; 0: none (default: 7)")
    parser.add_argument("--hidden", type=int, default=32, metavar="N", help="size of the LSTM's state (default: 32)")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="sequences at once (default: 16)")
    parser.add_argument(
        "--framework", choices=tuple(FRAMEWORKS), default="numpy", help="what differentiates (default: numpy)"
    )
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
    with profile() as warm_up:  # the first gradient takes longer; and it shows the tape of a step that stands alone
        new_model(8, arguments.hidden, arguments.batch).gradient(plan(Loop(8), slots=2))
    model = new_model(steps, arguments.hidden, arguments.batch)
    variants: list[_Variant] = []
    try:
        even = _run_variants(model, positions, arguments, variants)
        if arguments.optimal:
            assert warm_up.calls[0].trace is not None
            _run_optimal(model, even, warm_up.calls[0].trace, variants)
    except KeyboardInterrupt:
        _report([variant for variant in variants if variant.call.trace], arguments.report)
        raise
    _report(variants, arguments.report)
    return 0


def _model_on(framework: str) -> "type[Lstm]":
    """The model on that framework, whose module is imported only now: it needs the framework."""
    title, module, model = FRAMEWORKS[framework]
    try:
        import_module(framework)
    except ImportError as error:
        raise StepError(f"--framework {framework} needs {title}: pip install 'remat[{framework}]' ({error})") from error
    model_class: type[Lstm] = getattr(import_module(f"remat.cli.lstm.{module}"), model)
    return model_class


@dataclass
class _Variant:
    """One way to run the model: its plan, the recorded call, and the results."""

    name: str
    plan: Plan
    call: CallRecord
    loss: float = 0.0
    gradient: Any = None
    allocated: int | None = None  # the most bytes, by the framework's meter

    @property
    def trace(self) -> Trace:
        """The recorded trace of the run."""
        trace = self.call.trace
        assert trace is not None
        return trace

    @property
    def seconds(self) -> float:
        """How long all ops took."""
        return self.trace.seconds


def _run_variants(
    model: "Lstm", positions: list[int], arguments: argparse.Namespace, variants: list[_Variant]
) -> _Variant:
    """Run with even save points, and before that without any, if the arguments ask for it; the even ones."""
    steps, count = len(model.xs), len(positions)
    if steps % (count + 1):
        print(
            f"{count_text(steps)} steps can't be evenly divided into {count + 1} sections: they get "
            f"{steps // (count + 1)} or {steps // (count + 1) + 1} steps each"
        )
    if arguments.compare and count:
        _run(model, "without checkpoints", SavePoints(()), Loop(steps), Memory(slots=0), variants)
        _print(variants[-1], model)
    name = f"{count} checkpoint{'s' * (count != 1)}" if count else "without checkpoints"
    even = _run(model, name, SavePoints(tuple(positions)), Loop(steps), Memory(slots=count), variants)
    _print(even, model, variants[0] if len(variants) > 1 else None)
    return even


def _run_optimal(model: "Lstm", even: _Variant, single_steps: Trace, variants: list[_Variant]) -> None:
    """Let the planner place save points in the least memory that costs few more steps, and print the gain.

    In the same memory there may be nothing to gain: a step whose tape does not fit at the turn runs twice in any case.
    """
    loop, single = loop_of(even.trace), loop_of(single_steps)
    assert loop is not None
    assert single is not None
    even_peak = replace(even.plan, problem=loop).simulate().peak
    in_same_memory = plan(loop, even_peak)
    # The steps of a long range share residuals. A plan may record steps alone, whose tapes are the largest.
    largest = Loop(**{**loop.to_dict(), "tape": max(loop.tape, single.tape)})
    least = _least_memory(largest, int(MOST_EXTRA * even.trace.forward_steps), even_peak)
    best = _run(model, "placed by the planner", Auto(most=0), largest, Memory(least), variants)
    _print(best, model, variants[0] if len(variants) > 2 else None)
    # What the meter counts besides states and tapes (gradients, outputs, the work space of a step) is in both runs.
    besides = 0 if even.allocated is None else max(0, even.allocated - even.trace.peak)
    print(f"budget:           {bytes_text(least + besides, up=True)}, which the planner was given")
    fewer = 1 - in_same_memory.recomputed / max(1, even.trace.recomputed)
    more = best.trace.forward_steps / even.trace.forward_steps - 1
    print(
        f"gain:             {even_peak / max(1, best.trace.peak):.1f} times less memory than even save points, "
        f"for {more:+.1%} forward steps"
    )
    gain = f"{fewer:.0%} less recomputation" if fewer > 0 else "no better placement was found"
    print(f"in the same:      {gain} in the {bytes_text(even_peak)} of even save points")


def _least_memory(loop: Loop, steps: int, enough: int) -> int:
    """The least bytes in which the planner runs at most `steps` forward steps, to within 2 %."""
    low, high = 0, enough
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        try:
            fits = plan(loop, middle, planner=Auto(most=0)).forward_steps <= steps
        except InfeasibleError:
            fits = False
        low, high = (low, middle) if fits else (middle, high)
    return high


def _run(model: "Lstm", name: str, planner: Any, loop: Loop, memory: Memory, variants: list[_Variant]) -> _Variant:
    """Run the model by one planner's plan; the variant is appended to `variants`, also if it is interrupted."""
    with Bars() as bars, profile() as recorded:
        bars.say(name)
        run_plan = plan(loop, memory, planner=planner, progress=bars)
        try:
            loss, gradient = model.gradient(run_plan, bars)
        finally:
            if recorded.calls:
                variants.append(_Variant(name, run_plan, recorded.calls[0]))
        variant = variants[-1]
        variant.loss, variant.gradient = loss, gradient
    if model.metered:  # in a separate run: a meter that counts every op makes the ops slow
        with Bars() as bars, profile(memory=True) as recorded:
            bars.say(f"{name}, memory")
            model.gradient(run_plan, bars)
        trace = recorded.calls[0].trace
        variant.allocated = None if trace is None else trace.totals.allocated
    return variant


def _print(variant: _Variant, model: "Lstm", without: _Variant | None = None) -> None:
    """Print the numbers of one variant, and how it compares with the one without save points."""
    trace = variant.trace
    print(f"{variant.name}, {count_text(len(model.xs))} steps")
    print(f"loss:             {variant.loss:.15f}")
    print(f"peak live memory: {bytes_text(trace.peak)}")
    if variant.allocated is not None:
        print(f"allocated:        {bytes_text(variant.allocated)} at the most, every storage counted")
    if without is not None:
        print(f"ratio:            {trace.peak / without.trace.peak:.3f} of that without checkpoints, measured")
        print(f"gradients:        {agreement(variant.gradient, without.gradient)}")
        print(f"time ratio:       {variant.seconds / without.seconds:.2f} times that without checkpoints")
    elif trace.keeps:
        loop = loop_of(trace)
        assert loop is not None
        all_tapes = plan(loop, Memory(levels=[Level("ram")]), planner="keep-all").peak
        print(f"ratio:            {trace.peak / all_tapes:.3f} of the {bytes_text(all_tapes)} without, predicted")
    else:
        print("ratio:            1 (nothing is split)")
    print(
        f"time:             {variant.seconds:.2f} s for a gradient; {count_text(trace.forward_steps)} forward steps, "
        f"{count_text(trace.recomputed)} of them recomputed"
    )


def _report(variants: list[_Variant], path: str | None) -> None:
    if path and variants:
        title = "An LSTM with and without save points" if len(variants) > 1 else f"An LSTM, {variants[0].name}"
        write_report(
            [variant.call for variant in variants], path, title=title, labels=[variant.name for variant in variants]
        )
    elif not path:
        print("next: --report lstm.html draws what is live when", file=sys.stderr)
