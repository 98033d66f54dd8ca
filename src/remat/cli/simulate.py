"""`remat simulate`: what a schedule costs, in total or op by op."""

import argparse
import json
import sys
from dataclasses import asdict

from remat.cli.arguments import add_memory, add_problem, check_folder, read_subject, refuse_to_overwrite
from remat.cli.progress_bars import Bars
from remat.cli.words import PLAN_INDENT, show
from remat.progress import reporting_to
from remat.schedule import Trace, simulate
from remat.schedule.notation import format_op

EXAMPLE = "remat simulate plan.json, or: remat simulate ops.txt --steps 1000 --state 1MiB --tape 9MiB"
HELP = "say what a saved plan or a schedule in text costs: steps, peak, time"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a saved plan, or ops as text; - reads stdin")
    add_problem(parser, required=False)
    add_memory(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--events", action="store_true", help="print a line for each op: start, time, live bytes, op")
    shown.add_argument("--json", action="store_true", help="print the totals as JSON")
    parser.add_argument("--save", metavar="FILE", help="save the trace as JSON, for `remat report` and `remat compare`")
    parser.add_argument("--force", action="store_true", help="write over an existing file")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print."""
    if arguments.save:
        refuse_to_overwrite(arguments.save, arguments.force)
        check_folder(arguments.save)
    with Bars() as bars, reporting_to(bars):
        bars.say("simulating")
        trace = simulate(*read_subject(arguments))
    if arguments.events:
        _print_events(trace)
    elif arguments.json:
        data = {"forward_steps": trace.forward_steps, "peak": trace.peak, **asdict(trace.totals)}
        json.dump(data, sys.stdout, indent=1)
        print()
    else:
        show(trace, indent=PLAN_INDENT)
    if arguments.save:
        trace.save(arguments.save)
        print(f"saved {arguments.save}", file=sys.stderr)
    return 0


def _print_events(trace: Trace) -> None:
    print("index\tstart\tseconds\tstates\ttapes\tcotangents\top")
    for event in trace:
        live = event.live
        states = " ".join(f"{level}={size}" for level, size in live.state.items())
        row = (event.index, f"{event.start:g}", f"{event.seconds:g}", states, live.tape, live.cotangent)
        print(*row, format_op(event.op), sep="\t")
