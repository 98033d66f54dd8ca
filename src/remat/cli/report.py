"""`remat report`: a saved plan, trace or profile as a page, as text, or in another format."""

import argparse

from remat.cli.output import add_output, check_output, read_shown, write_report
from remat.reporting import text_report

EXAMPLE = "remat report plan.json -o plan.html --open"
HELP = "show a saved plan, trace or profile: what is live when, the peak and who holds it, what more memory buys"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a saved plan, trace or profile (JSON)")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the report, or print it as text."""
    check_output(arguments, arguments.file)
    subject = read_shown(arguments.file)
    if arguments.output:
        write_report(
            [subject],
            arguments.output,
            form=arguments.form,
            title=arguments.title,
            anonymous=arguments.anonymous,
            show=arguments.open,
        )
    else:
        print(text_report(subject, title=arguments.title, anonymous=arguments.anonymous, tradeoff=True), end="")
    return 0
