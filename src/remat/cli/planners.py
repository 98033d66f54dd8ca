"""`remat planners`: the list of planners."""

import argparse

from remat.cli.words import show
from remat.planners import PLANNERS

EXAMPLE = "remat planners"
HELP = "list the planners"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each planner."""
    column = max(map(len, PLANNERS)) + 2
    for name, planner in PLANNERS.items():
        show(f"{name:<{column}}{planner.summary}", indent=column)
    return 0
