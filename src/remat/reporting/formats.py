"""The formats of a report, and how it is written; the file's extension chooses the format."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from remat.errors import ReportError
from remat.planners import Plan
from remat.planners.memory_curve import MemoryCurve, memory_curve_of, memory_curve_without_planning
from remat.profiling import CallRecord, Profile
from remat.progress import Progress, check_progress, reporting_to
from remat.reporting.anonymize import anonymous as without_names
from remat.reporting.block_memory import block_memory
from remat.reporting.block_tables import block_tables
from remat.reporting.chrome_trace import chrome_of
from remat.reporting.headline import headline_of
from remat.reporting.html import page_of
from remat.reporting.plain_text import text_of
from remat.reporting.report_subject import ReportSubject, requested_bytes_of, subjects_of
from remat.reporting.summary import Summary, summarise
from remat.reporting.svg import below_each_other, standalone
from remat.reporting.svg_liveness import height_of, liveness_svg
from remat.reporting.table import Table
from remat.reporting.tables import compare, passes_table, profile_table
from remat.schedule import Trace
from remat.units import to_bytes
from remat.version import __version__

__all__ = ["FORMATS", "check_path", "curve_for", "format_for", "report", "text_report"]

_SUFFIXES = {
    ".chrome.json": "chrome",
    ".perfetto.json": "chrome",
    ".html": "html",
    ".htm": "html",
    ".txt": "txt",
    ".json": "json",
    ".svg": "svg",
    ".png": "png",
}

PICTURES = ("svg", "png")
WITH_TABLES = ("html", "txt", "json")  # the other formats are pictures and lists of events

Subjects = Plan | Trace | Profile | CallRecord


def report(
    *subjects_and_path: Subjects | str | Path,
    form: str | None = None,
    title: str | None = None,
    labels: Sequence[str] | None = None,
    anonymous: bool = False,
    tables: Sequence[Table] = (),
    tradeoff: bool | None = None,
    limit: int | str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a report on one or more plans, traces, profiles or calls, and return its path: `report(a, b, path)`.

    Args:
        subjects_and_path: What to show, then the path. Several subjects are compared on one scale of bytes. An existing
            file is replaced atomically: a reader never finds half a report.
        form: The format, if the path's extension does not choose it.
        title: The heading; by default it says what is shown.
        labels: A name for each subject.
        tables: Further tables.
        anonymous: Whether to leave out names and paths.
        tradeoff: Whether to plan for about twenty other budgets and show what they cost. By default only if there is a
            formula, as there is for slots.
        limit: Bytes to mark in all charts; by default, in a comparison, the budget that the subjects share.
        progress: An object with `update(done, total)`.

    Example:
        >>> import remat, tempfile
        >>> plans = [remat.plan(remat.Loop(64), slots=8, planner=planner) for planner in ("chunks", "auto")]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     remat.report(*plans, f"{folder}/two.html").name
        'two.html'
    """
    subjects, path = _subjects_and_path(subjects_and_path, labels)
    file_format = format_for(path, form)
    check_path(path, form)
    check_progress(progress)
    with reporting_to(progress):
        bytes_limit = None if limit is None else to_bytes(limit, "limit", least=1)
        planned = tradeoff if file_format in WITH_TABLES else False
        summaries = _summaries(subjects, labels, anonymous, planned, bytes_limit)
        # A caller with its own tables needs no other comparison.
        all_tables = [*tables] or _overview(subjects, summaries, anonymous)
        _check_drawable(summaries, all_tables, file_format)
        _write_atomically(path, FORMATS[file_format](summaries, title or _heading(subjects, summaries), all_tables))
    return path


def _subjects_and_path(given: Sequence[Any], labels: Sequence[str] | None) -> tuple[list[Any], Path]:
    *subjects, path = given
    if not isinstance(path, str | Path) or not subjects:
        raise ReportError("give what to show, then the path: report(plan, 'plan.html'), report(a, b, 'two.html')")
    if labels is not None and len(labels) != len(subjects):
        raise ReportError(f"there are {len(subjects)} things to show and {len(labels)} labels")
    return subjects, Path(path)


def _check_drawable(summaries: list[Summary], tables: list[Table], file_format: str) -> None:
    drawn = summaries or (file_format in PICTURES and any(table.picture for table in tables))
    if file_format not in WITH_TABLES and not drawn:
        raise ReportError("the profile has no run of a loop to draw. Write its tables as .html, .txt or .json")


def text_report(
    *subjects: Subjects,
    title: str | None = None,
    labels: Sequence[str] | None = None,
    anonymous: bool = False,
    tradeoff: bool | None = None,
) -> str:
    """The report as text, 80 columns wide; arguments as in `report`."""
    summaries = _summaries(subjects, labels, anonymous, tradeoff)
    return text_of(summaries, title or _heading(subjects, summaries), _overview(subjects, summaries, anonymous))


def format_for(path: str | Path, form: str | None = None) -> str:
    """The format given by `form`, or by the path's extension."""
    if form is None:
        name = Path(path).name.lower()
        form = next((form for ending, form in _SUFFIXES.items() if name.endswith(ending)), None)
        if form is None:
            raise ReportError(f"{name!r} has no known ending: end it in {', '.join(_SUFFIXES)}, or give form=")
    if form not in FORMATS:
        close = get_close_matches(str(form)[:40], FORMATS, 1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise ReportError(f"there is no form {str(form)[:40]!r} of a report{meant}; there are {', '.join(FORMATS)}")
    return form


def check_path(path: str | Path, form: str | None = None) -> None:
    """Raise the errors that writing a report to `path` would raise, before any work is done."""
    if not Path(path).parent.is_dir():
        raise ReportError(f"there is no folder {Path(path).parent} to write {Path(path).name} into")
    if format_for(path, form) == "png":
        _png_renderer()


def _summaries(
    values: Sequence[Any],
    labels: Sequence[str] | None,
    anonymous: bool,
    tradeoff: bool | None,
    limit: int | None = None,
) -> list[Summary]:
    names = [""] * len(values) if labels is None else labels
    subjects = [subject for value, name in zip(values, names, strict=True) for subject in subjects_of(value, name)]
    subjects = _with_limit(_with_distinct_labels(subjects), limit)
    curves = [curve_for(subject, tradeoff) for subject in subjects]
    if anonymous:
        subjects = [without_names(subject, number) for number, subject in enumerate(subjects, 1)]
    return [summarise(subject, curve) for subject, curve in zip(subjects, curves, strict=True)]


def curve_for(subject: ReportSubject, tradeoff: bool | None) -> MemoryCurve | None:
    """The memory curve of a subject, with `tradeoff` as in `report`; only here does a report plan anything."""
    if tradeoff is not None and not isinstance(tradeoff, bool):
        raise ReportError(f"tradeoff must be True, False or None, not {tradeoff!r:.40}")
    if tradeoff is False or subject.sized is None:
        return None
    find = memory_curve_of if tradeoff else memory_curve_without_planning
    return find(subject.sized, subject.requested_bytes, subject.step_cost)


def _with_distinct_labels(subjects: list[ReportSubject]) -> list[ReportSubject]:
    """The subjects, with a number added to labels that several share."""
    names = [subject.label for subject in subjects]
    return [
        replace(subject, label=f"{subject.label} ({names[: i + 1].count(subject.label)})")
        if names.count(subject.label) > 1
        else subject
        for i, subject in enumerate(subjects)
    ]


def _with_limit(subjects: list[ReportSubject], limit: int | None) -> list[ReportSubject]:
    """The subjects with the limit to draw in all charts: the given one, or the only budget among them."""
    budgets = {budget for subject in subjects if (budget := requested_bytes_of(subject)) is not None}
    if limit is None and len(budgets) == 1 and len(subjects) > 1:
        [limit] = budgets
    return [replace(subject, limit=limit) for subject in subjects]


def _overview(values: Sequence[Any], summaries: list[Summary], anonymous: bool) -> list[Table]:
    """The first tables of a report: those of a profile, or a comparison of several subjects."""
    if len(values) == 1 and isinstance(values[0], Profile):
        tables = (
            *block_tables(values[0], anonymous=anonymous),
            profile_table(values[0], anonymous=anonymous),
            *([passes_table(values[0], anonymous=anonymous)] if _passes_were_observed(values[0]) else []),
        )
        return [table for table in tables if table.rows]
    return [compare(summaries)] if len(summaries) > 1 else []


def _passes_were_observed(profile: Profile) -> bool:
    """Whether passes over segments were observed; of a traced JAX program, only the tracing is."""
    return any(each.what != "forward" for each in profile.passes) or any(c.framework != "jax" for c in profile.calls)


def _heading(values: Sequence[Any], summaries: list[Summary]) -> str:
    if len(values) == 1 and isinstance(values[0], Profile):
        calls = len(values[0])
        if not calls and values[0].models:
            return f"remat: a profile of {values[0].models[0].name} under a budget"
        if not calls and values[0].kept:
            blocks = len(block_memory(values[0]).blocks)
            return f"remat: a profile of {blocks} block{'s' * (blocks != 1)}"
        return f"remat: a profile of {calls} call{'s' * (calls != 1)}"
    kinds = {"run" if summary.subject.trace.measured else "plan" for summary in summaries}
    if len(summaries) > 1:
        return f"remat: {len(summaries)} {kinds.pop() + 's' if len(kinds) == 1 else 'plans and runs'} compared"
    return f"remat: a {kinds.pop()} and its live memory"


def _html(summaries: list[Summary], title: str, tables: list[Table]) -> bytes:
    return page_of(summaries, title, __version__, tables).encode()


def _text(summaries: list[Summary], title: str, tables: list[Table]) -> bytes:
    return text_of(summaries, title, tables).encode()


def _json(summaries: list[Summary], title: str, tables: list[Table]) -> bytes:
    data: dict[str, Any] = {"remat": "report", "version": 1, "title": title}
    data["tables"] = [
        {"title": table.title, "headline": table.headline, "head": table.head, "rows": table.rows, "tips": table.tips}
        for table in tables
    ]
    data["subjects"] = [summary.to_dict() for summary in summaries]
    return (json.dumps(data, indent=1) + "\n").encode()


def _chrome(summaries: list[Summary], title: str, tables: list[Table]) -> bytes:
    return (json.dumps(chrome_of(summaries)) + "\n").encode()


def _svg(summaries: list[Summary], title: str, tables: list[Table]) -> bytes:
    return standalone(_picture(summaries, tables)).encode()


def _png(summaries: list[Summary], title: str, tables: list[Table]) -> bytes:
    return bytes(_png_renderer().svg_to_bytes(svg_string=standalone(_picture(summaries, tables), plain=True), zoom=2))


def _png_renderer() -> Any:
    try:
        import resvg_py
    except ImportError:
        raise ReportError("drawing a PNG needs resvg_py: pip install resvg_py, or write .svg") from None
    return resvg_py


def _picture(summaries: list[Summary], tables: list[Table]) -> str:
    """The chart of live bytes over time; those of several subjects are stacked, on one scale of bytes.

    For a profile without loops, it is the picture of its blocks.
    """
    if not summaries:
        return next(table.picture for table in tables if table.picture)
    if len(summaries) == 1:
        return liveness_svg(summaries[0])
    top = max(summary.subject.trace.peak for summary in summaries)
    pictures = [liveness_svg(summary, top=top) for summary in summaries]
    labels = [f"{summary.label}: {headline_of(summary)}" for summary in summaries]
    return below_each_other(pictures, labels, [height_of(summary) for summary in summaries])


FORMATS: dict[str, Callable[[list[Summary], str, list[Table]], bytes]] = {
    "html": _html,
    "txt": _text,
    "json": _json,
    "svg": _svg,
    "png": _png,
    "chrome": _chrome,
}


def _write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically, via a temporary file in the same folder that then replaces it."""
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():  # a pipe or a device
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
