"""Mixin for `.report()` and for display in notebooks.

Rendering is done by `remat.reporting`, which is above this package and registers itself here when it is loaded, so that
plans and traces do not import it.
"""

from pathlib import Path
from typing import Any, Protocol

__all__ = ["Displayable", "Renderer", "register_renderer"]


class Renderer(Protocol):
    """What renders plans, traces and profiles."""

    def report(self, *subjects_and_path: Any, form: str | None, title: str | None, anonymous: bool) -> Path:
        """Write a report of the subjects to a file, and return its path."""
        ...

    def html(self, subject: Any) -> str | None:
        """A fragment of HTML without scripts; None if it would take long."""
        ...

    def svg(self, subject: Any) -> str | None:
        """A picture of the live bytes over time; None if it would take long."""
        ...


_renderer: list[Renderer] = []  # at most one


def register_renderer(renderer: Renderer) -> None:
    """Render everything with `renderer` from now on."""
    _renderer[:] = [renderer]


class Displayable:
    """A value with a report: `report(path)` writes it, notebooks show it by themselves."""

    def report(
        self, path: str | Path, *, form: str | None = None, title: str | None = None, anonymous: bool = False
    ) -> Path:
        """Write a report to `path`, over any file of that name, and return the path.

        The form follows the ending: .html is one page that opens offline, .txt is text of 80 columns, .json the data,
        .svg and .png a picture, .chrome.json a file for Perfetto and chrome://tracing. `form` chooses it
        whatever the ending: "html", "txt", "json", "svg", "png" or "chrome". `anonymous` leaves out names and paths.
        """
        return _renderer[0].report(self, path, form=form, title=title, anonymous=anonymous)

    def _repr_html_(self) -> str | None:
        return _renderer[0].html(self)

    def _repr_svg_(self) -> str | None:
        return _renderer[0].svg(self)
