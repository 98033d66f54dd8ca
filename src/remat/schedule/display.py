"""Mixin for `.report()` and for display in notebooks.

`remat.reporting` does the rendering. It is a higher layer, so plans and traces do not import it; it registers itself
here when it is loaded.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Displayable", "Renderer", "register_renderer"]


class Renderer(Protocol):
    """Renders plans, traces and profiles."""

    def report(
        self, *subjects_and_path: Any, form: str | None, title: str | None, anonymous: bool, tradeoff: bool | None
    ) -> Path:
        """Write a report of the subjects to a file, and return its path."""
        ...

    def html(self, subject: Any) -> str | None:
        """A fragment of HTML without scripts; None if it would take long."""
        ...

    def svg(self, subject: Any) -> str | None:
        """A picture of the live bytes over time; None if it would take long."""
        ...


_registered: list[Renderer] = []  # at most one


def register_renderer(renderer: Renderer) -> None:
    """Render everything with `renderer` from now on."""
    _registered[:] = [renderer]


def _renderer() -> Renderer:
    """The registered renderer, whose package is loaded by name when it is first needed."""
    if not _registered:
        import_module("remat.reporting")  # registers itself
    return _registered[0]


class Displayable:
    """A value with a report: `report(path)` writes it, and notebooks show it automatically."""

    def report(
        self,
        path: str | Path,
        *,
        form: str | None = None,
        title: str | None = None,
        anonymous: bool = False,
        tradeoff: bool | None = None,
    ) -> Path:
        """Write a report to `path`, overwriting the file if it exists, and return the path.

        The file's extension chooses the format: .html is one page that works offline, .txt is text 80 columns wide,
        .json the data, .svg and .png a picture, .chrome.json a file for Perfetto and chrome://tracing. `form` chooses
        it instead: "html", "txt", "json", "svg", "png" or "chrome". `anonymous` leaves out names and paths.
        `tradeoff=True` adds what other budgets would cost, which may require planning for them; `False` leaves it out.
        """
        return _renderer().report(self, path, form=form, title=title, anonymous=anonymous, tradeoff=tradeoff)

    def _repr_html_(self) -> str | None:
        return _renderer().html(self)

    def _repr_svg_(self) -> str | None:
        return _renderer().svg(self)
