"""The command line: `remat COMMAND`, one file per command. Data goes to stdout, messages to stderr.

Exit status: 0 success, 1 a negative answer (illegal, infeasible), 2 a usage error (an invalid argument or file).
"""

import argparse
import os
import sys
from collections.abc import Sequence

from remat import __version__
from remat.cli import compare, demo, fit, lstm, plan, planners, report, simulate, sweep, verify
from remat.cli.parser import Parser, refuse_unknown_words
from remat.cli.words import tell
from remat.errors import IllegalError, InfeasibleError, RematError

__all__ = ["main"]

COMMANDS = (demo, lstm, fit, plan, sweep, verify, simulate, report, compare, planners)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = Parser(
        prog="remat",
        example="remat plan --steps 1000 --slots 31",
        description="Exact gradients of long loops inside a memory budget: see it work, plan it, check and cost it.",
    )
    parser.add_argument("--version", action="version", version=f"remat {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    commands: dict[str, Parser] = {}
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        sub = subparsers.add_parser(name, example=command.EXAMPLE, help=command.HELP, description=command.HELP)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
        commands[name] = sub
    words = sys.argv[1:] if argv is None else list(argv)
    if not words:
        parser.print_help()
        return 0
    refuse_unknown_words(parser, commands, words)
    return _run(parser.parse_args(words))


def _run(arguments: argparse.Namespace) -> int:
    """Run the chosen command; errors become messages and an exit status."""
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InfeasibleError, IllegalError) as error:
        tell(f"remat: {error}")
        return 1
    except FileNotFoundError as error:
        tell(f"remat: there is no file {error.filename}")
        return 2
    except OSError as error:
        tell(f"remat: {error.filename or ''}: {error.strerror or error}")
        return 2
    except (RematError, UnicodeDecodeError) as error:
        tell(f"remat: {error}")
        return 2
    except KeyboardInterrupt:
        tell("remat: interrupted")
        return 130
