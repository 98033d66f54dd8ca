"""`remat fit`: put your own model under a budget, and see what that costs before training it."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remat.cli.arguments import check_exists
from remat.cli.output import add_saved_plan, check_saved_plan, save_plan
from remat.cli.progress_bars import Bars
from remat.cli.timing import Times
from remat.errors import ProblemError, RematError
from remat.interface.auto_checkpointing import StepCosts, auto_checkpoint, explain, measure_step
from remat.planners import Plan, sweep
from remat.planners import plan as make_plan
from remat.problem import Chain
from remat.reporting.block_table import aligned
from remat.units import bytes_text, seconds_text

EXAMPLE = "remat fit train.py:make_model --sample train.py:make_batch --memory 2GiB"
HELP = "measure and plan a model for a budget, run one step plainly and one by the plan, and compare"
ROUNDS = 3  # steps of each kind to measure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("model", metavar="FILE:NAME", help="a Python file, and the function in it that makes the model")
    parser.add_argument("--sample", required=True, metavar="FILE:NAME", help="the function that makes its arguments")
    parser.add_argument("--memory", required=True, metavar="SIZE", help='bytes, such as 2GiB, a fraction, or "auto"')
    parser.add_argument("--loss", metavar="FILE:NAME", help="the function of the model's output that is differentiated")
    parser.add_argument("--blocks", metavar="NAME,…", help="the modules that may be recomputed, or a list of them")
    parser.add_argument("--sweep", action="store_true", help="print what other budgets would cost, too")
    add_saved_plan(parser, ", for auto_checkpoint(model, plan=...)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, plan, run and compare."""
    check_saved_plan(arguments)
    files: dict[str, dict[str, Any]] = {}
    model, sample = _named(arguments.model, files)(), _named(arguments.sample, files)()
    loss = _named(arguments.loss, files) if arguments.loss else None
    blocks = arguments.blocks.split(",") if arguments.blocks else None
    with Bars() as bars:
        bars.say("measuring and planning")
        try:
            auto_checkpoint(model, memory=_memory(arguments.memory), sample=sample, blocks=blocks, loss=loss)
        except (TypeError, RuntimeError, ValueError) as error:
            if isinstance(error, RematError):
                raise
            raise ProblemError(
                f"the model of {arguments.model} does not run on what {arguments.sample} makes: "
                f"{type(error).__name__}: {error}"
            ) from error
        plan: Plan = model.remat_plan
        assert isinstance(plan.problem, Chain)
        everything = make_plan(plan.problem, 10**18, planner="chain-keep-all")
        bars.say("running steps, in turns", 2 * ROUNDS)
        planned, plain = _measured(model, sample, loss, bars)
    print(explain(plan))
    print()
    print(_comparison(everything, plain, plan, planned))
    if arguments.sweep:
        print()
        print(sweep(plan.problem, points=12))
    save_plan(plan, arguments)
    return 0


def _measured(
    model: Any, sample: Any, loss: Any, bars: Bars
) -> tuple[tuple[StepCosts | None, ...], tuple[StepCosts | None, ...]]:
    """The costs of steps with the plan and of plain steps, measured in turns."""
    steps: list[list[StepCosts | None]] = [[], []]
    for _ in range(ROUNDS):
        for plain in (False, True):
            steps[plain].append(measure_step(model, sample, loss=loss, plain=plain))
            bars.step()
    return tuple(steps[False]), tuple(steps[True])


def _comparison(
    everything: Plan, plain: Sequence[StepCosts | None], plan: Plan, planned: Sequence[StepCosts | None]
) -> str:
    rows = [("one step", "predicted peak", "measured peak", "predicted time", "measured time")]
    for name, made, all_costs in (("plainly", everything, plain), ("by the plan", plan, planned)):
        costs = [each for each in all_costs if each is not None]
        measured = ("does not fit", "")
        if costs:
            measured = bytes_text(max(each.peak for each in costs)), str(Times(tuple(each.seconds for each in costs)))
        # The plan covers only the model; the measured step also holds what the model returns, until its end.
        peak = made.peak + max((each.outputs for each in (*planned, *plain) if each is not None), default=0)
        rows.append((name, bytes_text(peak), measured[0], seconds_text(made.seconds), measured[1]))
    return "\n".join(aligned(rows))


def _memory(text: str) -> int | float | str:
    try:
        return float(text) if "." in text else text
    except ValueError:  # "1.5 GiB"
        return text


def _named(text: str, files: dict[str, dict[str, Any]]) -> Any:
    """The function of that name in a Python file (FILE:NAME); each file is run once."""
    path, _, name = text.rpartition(":")
    if not path or not name:
        raise ProblemError(f"{text!r} must be FILE:NAME, such as train.py:make_model")
    check_exists(path)
    if path not in files:
        sys.path.insert(0, str(Path(path).resolve().parent))  # it may import modules from its own folder
        files[path] = runpy.run_path(path, run_name="__remat__")
    if not callable(files[path].get(name)):
        found = ", ".join(key for key, value in files[path].items() if callable(value) and not key.startswith("_"))
        raise ProblemError(f"{path} has no function {name}; it has {found[:200] or 'none'}")
    return files[path][name]
