"""The renderer that plans, traces and profiles use for their `report` method and in notebooks."""

from pathlib import Path
from typing import Any

from remat.errors import ReportError
from remat.planners import Plan
from remat.reporting.formats import curve_for, report
from remat.reporting.html import fragment_of
from remat.reporting.report_subject import subjects_of
from remat.reporting.summary import Summary, summarise
from remat.reporting.svg import standalone
from remat.reporting.svg_liveness import liveness_svg
from remat.schedule.display import register_renderer

__all__ = ["register"]

MOST_UNITS = 20_000  # notebooks draw plans of up to this many units, and print longer ones as text


def register() -> None:
    """Make this package the renderer of all `Displayable` values."""
    register_renderer(_ReportRenderer())


class _ReportRenderer:
    """Implements the `Renderer` protocol with reports."""

    def report(
        self, *subjects_and_path: Any, form: str | None, title: str | None, anonymous: bool, tradeoff: bool | None
    ) -> Path:
        return report(*subjects_and_path, form=form, title=title, anonymous=anonymous, tradeoff=tradeoff)

    def html(self, subject: Any) -> str | None:
        summaries = _summaries_if_small(subject)
        return None if summaries is None else fragment_of(summaries)

    def svg(self, subject: Any) -> str | None:
        summaries = _summaries_if_small(subject)
        return None if summaries is None or len(summaries) > 1 else standalone(liveness_svg(summaries[0]))


def _summaries_if_small(subject: Any) -> list[Summary] | None:
    """Summaries for a notebook; None if they would take long or show nothing, which makes it print text."""
    if isinstance(subject, Plan) and (subject.source is None or subject.problem.units > MOST_UNITS):
        return None
    try:
        subjects = subjects_of(subject)
    except ReportError:
        return None
    if not subjects or any(each.trace.totals.ops > 10 * MOST_UNITS for each in subjects):
        return None
    return [summarise(each, curve_for(each, None)) for each in subjects]
