"""What the reporting commands share: reading saved values, writing a report, opening it in the browser."""

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remat.cli.arguments import check_exists, check_folder, refuse_to_overwrite
from remat.cli.progress_bars import Bars
from remat.errors import FileError
from remat.planners import Plan
from remat.problem.serialization import in_file, read_json, read_limited
from remat.profiling import Profile
from remat.reporting import report
from remat.reporting.formats import check_path
from remat.reporting.table import Table
from remat.schedule import Trace

__all__ = [
    "add_output",
    "add_saved_plan",
    "check_output",
    "check_saved_plan",
    "read_shown",
    "save_plan",
    "write_report",
]

_SAVED_TYPES: tuple[type[Plan] | type[Trace] | type[Profile], ...] = (Plan, Trace, Profile)


def add_saved_plan(parser: argparse.ArgumentParser, use: str = "") -> None:
    """Add the arguments of a command that makes a plan; `use` says what the saved plan is for."""
    parser.add_argument("--save", metavar="FILE", help=f"save the plan as JSON{use}")
    parser.add_argument("--report", metavar="FILE", help="write a report: .html, .txt, .json, .svg, .png, .chrome.json")
    parser.add_argument("--force", action="store_true", help="write over an existing file")


def check_saved_plan(arguments: argparse.Namespace) -> None:
    """Raise the errors that saving and reporting would raise, before any work is done."""
    for path in filter(None, (arguments.save, arguments.report)):
        refuse_to_overwrite(path, arguments.force)
        check_folder(path)
    if arguments.report:
        check_path(arguments.report)
        if arguments.save and Path(arguments.save).resolve() == Path(arguments.report).resolve():
            raise FileError(f"--save and --report both write {arguments.report}")


def save_plan(plan: Plan, arguments: argparse.Namespace) -> None:
    """Save the plan and write its report if the arguments ask for it."""
    if arguments.save:
        plan.save(arguments.save)
        print(f"saved {arguments.save}", file=sys.stderr)
    if arguments.report:
        write_report([plan], arguments.report)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that writes a report."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the report: .html, .txt, .json, .svg, .png or .chrome.json (default: text)",
    )
    parser.add_argument("--form", metavar="NAME", help="the form, where the file's ending does not say it")
    parser.add_argument("--title", metavar="TEXT", help="the heading")
    parser.add_argument("--anonymous", action="store_true", help="leave out names and paths")
    parser.add_argument("--force", action="store_true", help="write over an existing file")
    parser.add_argument("--open", action="store_true", help="show the report in the browser")


def check_output(arguments: argparse.Namespace, *inputs: str) -> None:
    """Raise the errors that writing would raise, before any work is done; not even --force overwrites an input."""
    if arguments.output and any(_same(arguments.output, name) for name in inputs):
        raise FileError(f"{arguments.output} is what the report is about; give another -o")
    if arguments.output:
        check_path(arguments.output, arguments.form)
        refuse_to_overwrite(arguments.output, arguments.force)
    elif arguments.open or arguments.form:
        raise FileError("give -o FILE for a report in another form than text, or to open it")


def _same(a: str, b: str) -> bool:
    return Path(a).exists() and Path(b).exists() and Path(a).samefile(b)


def read_shown(name: str) -> Plan | Trace | Profile:
    """The plan, trace or profile saved in a file."""
    check_exists(name)
    with in_file(name):
        data = read_json(read_limited(name))
        tag = data.get("remat") if isinstance(data, dict) else None
        for saved_type in _SAVED_TYPES:
            if tag == saved_type.kind:
                return saved_type.from_envelope(data)
    what = "no saved remat value" if tag is None else f"a saved {str(tag)[:40]!r}"
    raise FileError(f"{name} is {what}; a report is about a saved plan, trace or profile")


def write_report(
    subjects: Sequence[Any],
    path: str,
    *,
    form: str | None = None,
    title: str | None = None,
    labels: Sequence[str] | None = None,
    anonymous: bool = False,
    tables: Sequence[Table] = (),
    limit: int | None = None,
    show: bool = False,
) -> None:
    """Write a report with its memory curve and print its path; with `show`, open it in the browser."""
    with Bars() as bars:
        bars.say("writing the report")
        written = report(
            *subjects,
            path,
            form=form,
            title=title,
            labels=labels,
            anonymous=anonymous,
            tables=tables,
            tradeoff=True,
            limit=limit,
            progress=bars,
        )
    print(f"wrote {written}", file=sys.stderr)
    if show and not webbrowser.open(Path(written).resolve().as_uri()):
        print(f"no browser could be opened; open {written} yourself", file=sys.stderr)
