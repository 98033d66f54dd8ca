"""`remat plan`: plan a loop or a saved chain or graph, print the plan, its ops or its JSON, save it."""

import argparse
import sys

from remat.cli.arguments import (
    add_memory,
    add_planner,
    add_problem,
    read_memory,
    read_planner,
    read_problem,
)
from remat.cli.output import add_saved_plan, check_saved_plan, save_plan
from remat.cli.progress_bars import Bars
from remat.cli.words import PLAN_INDENT, show
from remat.planners import plan as make_plan

EXAMPLE = "remat plan --steps 1000 --state 1MiB --tape 9MiB --memory 64MiB"
HELP = "plan the reversal of a loop, a chain or a graph and print what it costs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_problem(parser, required=True)
    add_memory(parser)
    add_planner(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--ops", action="store_true", help="print the ops, one a line (the plan goes to stderr)")
    shown.add_argument("--json", action="store_true", help="print the plan with its ops as JSON")
    add_saved_plan(parser)


def run(arguments: argparse.Namespace) -> int:
    """Plan and print."""
    check_saved_plan(arguments)
    problem, memory = read_problem(arguments), read_memory(arguments)
    planner = read_planner(arguments, problem)
    with Bars() as bars:
        bars.say("planning")
        plan = make_plan(problem, memory, planner=planner, progress=bars)
    if arguments.ops or arguments.json or arguments.save or arguments.report:
        plan.schedule  # noqa: B018 (raises for an unknown length, before anything is printed)
    if arguments.json:
        plan.write(sys.stdout)
    elif arguments.ops:
        show(plan, indent=PLAN_INDENT, file=sys.stderr)
        for line in plan.schedule.lines():
            print(line)
    else:
        show(plan, indent=PLAN_INDENT)
    save_plan(plan, arguments)
    return 0
