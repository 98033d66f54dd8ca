"""`remat compare`: two or more saved plans, traces or profiles side by side."""

import argparse
from pathlib import Path

from remat.cli.output import add_output, check_output, read_shown, write_report
from remat.reporting import text_report

EXAMPLE = "remat compare before.json after.json -o both.html"
HELP = "compare saved plans, traces or profiles: peaks, forward steps, times, and their charts on one scale"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("first", metavar="FILE", help="a saved plan, trace or profile (JSON)")
    parser.add_argument("others", metavar="FILE", nargs="+", help="what it is compared with")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the comparison, or print it as text."""
    names = [arguments.first, *arguments.others]
    check_output(arguments, *names)
    subjects = [read_shown(name) for name in names]
    labels = [Path(name).stem for name in names]
    if arguments.output:
        write_report(
            subjects,
            arguments.output,
            form=arguments.form,
            title=arguments.title,
            labels=labels,
            anonymous=arguments.anonymous,
            show=arguments.open,
        )
    else:
        text = text_report(
            *subjects, title=arguments.title, labels=labels, anonymous=arguments.anonymous, tradeoff=True
        )
        print(text, end="")
    return 0
