"""The command line: `remat COMMAND`, one file a command. Data goes to stdout, messages to stderr.

Exit status: 0 yes, 1 no (illegal, infeasible), 2 usage (an argument or a file that makes no sense).
"""

import os
import sys
from collections.abc import Sequence

from remat import __version__
from remat.cli import compare, demo, fit, lstm, plan, planners, report, simulate, sweep, verify
from remat.cli.arguments import Parser
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
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        sub = commands.add_parser(name, example=command.EXAMPLE, help=command.HELP, description=command.HELP)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InfeasibleError, IllegalError) as error:
        print(f"remat: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"remat: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 2
    except (RematError, UnicodeDecodeError) as error:
        print(f"remat: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("remat: interrupted", file=sys.stderr)
        return 130
