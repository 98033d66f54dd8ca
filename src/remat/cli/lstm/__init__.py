"""`remat lstm`: an LSTM over a long sequence, split by save points, with less live memory and the same gradients."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from remat.cli.agreement import agreement
from remat.cli.arguments import read_choice, read_whole, refuse_to_overwrite
from remat.cli.lstm.keras_run import BACKENDS, KerasRequest, run_keras
from remat.cli.lstm.variants import (
    FRAMEWORKS,
    Variant,
    even_plan,
    least_memory,
    model_on,
    run_variant,
    step_cost_of,
    too_little,
    with_times,
)
from remat.cli.output import write_report
from remat.cli.words import show, tell
from remat.errors import InfeasibleError, ProblemError
from remat.measuring import StepCost, loop_of
from remat.planners import Plan, plan, save_points
from remat.problem import Level, Loop, Memory
from remat.reporting.formats import check_path
from remat.units import bytes_text, count_text, number_text, to_bytes, to_count

if TYPE_CHECKING:
    from remat.cli.lstm.model import Lstm

EXAMPLE = "remat lstm --memory 512KiB --compare --report lstm.html"
HELP = "run an LSTM over a long sequence, split by save points or inside a budget, and show what is live"
MOST_EXTRA = 1.1  # --optimal may run this many times the forward steps of even save points
CHECKPOINTS = 7  # the default number, unless a budget is given
STEPS_TO_MEASURE = 64  # length of the model on which the cost of a step is measured
_COLUMN = 18  # the column in which values begin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--seq-len", default="2048", metavar="N", help="steps of the LSTM (default: 2048)")
    parser.add_argument("--checkpoints", metavar="K", help=f"save points; 0: none (default: {CHECKPOINTS})")
    parser.add_argument("--memory", metavar="SIZE", help="plan it inside this budget, such as 512KiB")
    parser.add_argument("--hidden", default="32", metavar="N", help="size of the LSTM's state (default: 32)")
    parser.add_argument("--batch", default="16", metavar="N", help="sequences at once (default: 16)")
    parser.add_argument(
        "--framework",
        default="numpy",
        metavar="NAME",
        help="what differentiates: numpy, torch, jax or keras (default: numpy)",
    )
    parser.add_argument("--backend", metavar="NAME", help="of Keras: torch, jax or tensorflow (default: torch)")
    parser.add_argument("--optimal", action="store_true", help="also let the planner place them, in less memory")
    parser.add_argument("--compare", action="store_true", help="run without save points too, and put both side by side")
    parser.add_argument("--rounds", default="3", metavar="N", help="timed gradients of each kind (default: 3)")
    parser.add_argument("--report", metavar="FILE", help="write a report with the liveness charts")
    parser.add_argument("--force", action="store_true", help="write over an existing report")


def run(arguments: argparse.Namespace) -> int:
    """Run, print, and write the report; Ctrl-C leaves a report of what was done so far."""
    steps, hidden, batch, rounds = (
        to_count(read_whole(getattr(arguments, name), f"--{name.replace('_', '-')}"), f"--{name}", least=1)
        for name in ("seq_len", "hidden", "batch", "rounds")
    )
    memory = None if arguments.memory is None else to_bytes(arguments.memory, "--memory")
    count = CHECKPOINTS if memory is None else 0
    if arguments.checkpoints is not None:
        count = to_count(read_whole(arguments.checkpoints, "--checkpoints"), "--checkpoints")
    positions = save_points(steps, count)
    if arguments.report:
        check_path(arguments.report)
        refuse_to_overwrite(arguments.report, arguments.force)
    if arguments.optimal and not count:
        raise ProblemError("--optimal places save points in the memory that --checkpoints takes: give at least 1")
    framework = read_choice(arguments.framework, [*FRAMEWORKS, "keras"], "--framework")
    if arguments.backend is not None and framework != "keras":
        raise ProblemError("--backend is Keras's own: give --framework keras with it")
    if framework == "keras":
        backend = read_choice(arguments.backend or BACKENDS[0], BACKENDS, "--backend")
        _say_uneven(steps, count)
        sizes = backend, steps, hidden, batch, rounds, positions, memory
        return run_keras(KerasRequest(*sizes, arguments.compare, arguments.optimal, arguments.report))
    new_model = model_on(framework)
    new_model(8, hidden, batch).gradient(plan(Loop(8), slots=2))  # the first gradient takes longer
    model = new_model(steps, hidden, batch)
    variants: list[Variant] = []
    try:
        _run_variants(model, positions, memory, arguments.compare, variants)
        if arguments.optimal:
            cost = step_cost_of(new_model(min(steps, STEPS_TO_MEASURE), hidden, batch))
            placed, given = _less(cost, variants[-1], steps)
            # The plan itself is run: one made again from other measured times could run more steps.
            best = run_variant(model, "placed by the planner", placed, variants.append)
            variants.append(replace(best, given=given + model.result_bytes))
        variants[:] = with_times(model, variants, rounds)
    except KeyboardInterrupt:
        _report(variants, arguments.report, memory)
        raise
    _print_all(variants, steps, optimal=arguments.optimal)
    _report(variants, arguments.report, memory)
    if not arguments.report:
        tell("next: --report lstm.html draws what is live when")
    return 0


def _say_uneven(steps: int, count: int) -> None:
    if steps % (count + 1):
        print(
            f"{count_text(steps)} steps can't be evenly divided into {count + 1} sections: they get "
            f"{steps // (count + 1)} or {steps // (count + 1) + 1} steps each"
        )


def _run_variants(
    model: "Lstm", positions: list[int], memory: int | None, compare: bool, variants: list[Variant]
) -> None:
    """Run without save points, inside the budget and with even save points, as requested."""
    steps, count = len(model.xs), len(positions)
    _say_uneven(steps, count)
    ways: list[tuple[str, Plan | int]] = []
    if compare or (not count and memory is None):
        ways.append(("without checkpoints", even_plan(steps, [])))
    if memory is not None:
        ways.append((f"inside {bytes_text(memory)}", memory))
    if count:
        ways.append((f"{count} checkpoint{'s' * (count != 1)}", even_plan(steps, positions)))
    for name, budget in ways:
        try:
            variants.append(run_variant(model, name, budget, variants.append))
        except InfeasibleError as error:
            raise too_little(memory or 0, error.minimum, model.result_bytes, "outputs and gradients") from error


def _less(cost: StepCost, even: Variant, steps: int) -> tuple[Plan, int]:
    """The plan that runs at most MOST_EXTRA times the steps of even save points in the least bytes, and these bytes.

    In the same memory there may be nothing to gain: a step whose tape does not fit at the turn runs twice in any case.
    """
    enough = cost.workspace + cost.bookkeeping + 2 * even.trace.peak
    return least_memory(cost, steps, int(MOST_EXTRA * even.trace.forward_steps), enough)


def _print_all(variants: list[Variant], steps: int, *, optimal: bool) -> None:
    """Print the numbers of all variants; ratios are relative to the first, if it has no save points."""
    first = variants[0] if len(variants) > 1 and not variants[0].trace.keeps else None
    # All are compared with one prediction: that from the longest ranges, whose tapes are those of the plain run.
    all_tapes = min((_all_tapes(variant) for variant in variants if variant.trace.keeps), default=0)
    for variant in variants:
        print(f"{variant.name}, {count_text(steps)} steps")
        for name, value in _numbers(variant, first, all_tapes):
            show(f"{name + ':':<{_COLUMN}}{value}", indent=_COLUMN)
    if not optimal:
        return
    even, best = variants[-2:]
    more = best.trace.forward_steps / even.trace.forward_steps - 1
    gain = (
        f"{number_text(even.trace.peak / max(1, best.trace.peak))} times less memory than even save points, "
        f"for {more:+.1%} forward steps"
    )
    show(f"{'gain:':<{_COLUMN}}{gain}", indent=_COLUMN)


def _all_tapes(variant: Variant) -> int:
    """The bytes that holding every tape would take, by the sizes of this run."""
    loop = loop_of(variant.trace)
    assert loop is not None
    return plan(loop, Memory(levels=[Level("ram")]), planner="keep-all").peak


def _numbers(variant: Variant, first: Variant | None, all_tapes: int) -> Iterator[tuple[str, str]]:
    """The numbers to print for one variant, compared with the first, or with what all tapes would take."""
    trace = variant.trace
    yield "loss", f"{variant.loss:.15f}"
    given = variant.budget if isinstance(variant.budget, int) else variant.given
    if given is not None:
        yield "budget", f"{bytes_text(given)}, which the planner was given"
    yield "peak live memory", bytes_text(trace.peak)
    if variant.allocated is not None:
        yield "allocated", f"{bytes_text(variant.allocated)} at the most, every storage counted"
    assert variant.times is not None
    if first is not None and variant is not first:
        assert first.times is not None
        yield "ratio", f"{trace.peak / first.trace.peak:.3f} of that without checkpoints, measured"
        yield "gradients", agreement(variant.gradient, first.gradient)
        yield "time ratio", f"{variant.times.median / first.times.median:.2f} times that without checkpoints"
    elif trace.keeps:
        yield "ratio", f"{trace.peak / all_tapes:.3f} of the {bytes_text(all_tapes)} without, predicted"
    else:
        yield "ratio", "1 (nothing is split)"
    yield "time", f"{variant.times} for a gradient"
    yield "forward steps", f"{count_text(trace.forward_steps)}, {count_text(trace.recomputed)} of them recomputed"


def _report(variants: list[Variant], path: str | None, limit: int | None) -> None:
    if path and variants:
        title = "An LSTM with and without save points" if len(variants) > 1 else f"An LSTM, {variants[0].name}"
        labels = [variant.name for variant in variants]
        write_report([variant.call for variant in variants], path, title=title, labels=labels, limit=limit)
