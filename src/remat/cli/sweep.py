"""`remat sweep`: the trade-off curve of memory against forward steps and time."""

import argparse
import json
import sys
from dataclasses import asdict

from remat.cli.arguments import add_planner, add_problem, ask_for_sizes, read_planner, read_problem, read_whole
from remat.cli.progress_bars import Bars
from remat.planners import sweep

EXAMPLE = "remat sweep --steps 1000 --state 1MiB --tape 9MiB"
HELP = "print what more memory buys: forward steps and time at several budgets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_problem(parser, required=True)
    budgets = parser.add_mutually_exclusive_group()
    budgets.add_argument("--memory", metavar="SIZE,…", help="budgets in bytes, such as 16MiB,64MiB")
    budgets.add_argument("--slots", metavar="N,…", help="budgets in slots, such as 10,31,100")
    budgets.add_argument("--points", default="16", metavar="N", help="so many budgets, least to most (default 16)")
    add_planner(parser)
    parser.add_argument("--json", action="store_true", help="print the curve as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Plan at every budget and print the curve."""
    if not arguments.slots:
        ask_for_sizes(arguments, "a curve in bytes")
    problem = read_problem(arguments)
    with Bars() as bars:
        bars.say("planning")
        curve = sweep(
            problem,
            arguments.memory.split(",") if arguments.memory else None,
            slots=[read_whole(text, "slots") for text in arguments.slots.split(",")] if arguments.slots else None,
            planner=read_planner(arguments, problem),
            points=read_whole(arguments.points, "points"),
            progress=bars,
        )
    if arguments.json:
        json.dump({"unit": curve.unit, "points": [asdict(point) for point in curve.points]}, sys.stdout, indent=1)
        print()
    else:
        print(curve)
    return 0
