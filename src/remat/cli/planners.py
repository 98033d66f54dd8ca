"""`remat planners`: the list of planners."""

import argparse

from remat.planners import PLANNERS

EXAMPLE = "remat planners"
HELP = "list the planners"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each planner."""
    for name, planner in PLANNERS.items():
        print(f"{name:<{max(map(len, PLANNERS)) + 2}}{planner.summary}")
    return 0
