"""`remat verify`: is a schedule legal? Exit 0 if it is, 1 if not."""

import argparse

from remat.cli.arguments import add_memory, add_problem, read_subject
from remat.errors import ProblemError
from remat.schedule import verify

EXAMPLE = "remat verify plan.json, or: remat verify ops.txt --steps 1000 --slots 31"
HELP = "check a saved plan or a schedule in text against the rules; exit 1 if it breaks one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a saved plan, or ops as text; - reads stdin")
    add_problem(parser, required=False)
    add_memory(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check, and print the verdict."""
    schedule, problem, memory = read_subject(arguments)
    if memory is None:
        raise ProblemError("text does not say what may be kept: give --slots N, --memory SIZE or --level NAME,SIZE")
    verdict = verify(schedule, problem, memory)
    print(verdict)
    return 0 if verdict else 1
