"""Mixin for `.report()` and for display in notebooks.

Rendering is done by `remat.reporting`, which is above this package and registers itself here when it is loaded, so that
plans and traces do not import it.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Displayable", "Renderer", "register_renderer"]


class Renderer(Protocol):
    """What renders plans, traces and profiles."""

    def report(
        self, *subjects_and_path: Any, form: str | None, title: str | None, anonymous: bool, tradeoff: bool | None
    ) -> Path:
        """Write a report of the subjects to a file, and return its path."""
        ...

    def html(self, subject: Any) -> str | None:
        """A fragment of HTML without scripts; None where it would take long."""
        ...

    def svg(self, subject: Any) -> str | None:
        """A picture of what is live when; None where it would take long."""
        ...


_registered: list[Renderer] = []  # at most one


def register_renderer(renderer: Renderer) -> None:
    """Render everything with `renderer` from now on."""
    _registered[:] = [renderer]


def _renderer() -> Renderer:
    """The registered renderer. Its package is a higher layer, so it is loaded by name when it is first needed."""
    if not _registered:
        import_module("remat.reporting")  # registers itself
    return _registered[0]


class Displayable:
    """A value with a report: `report(path)` writes it, notebooks show it by themselves."""

    def report(
        self,
        path: str | Path,
        *,
        form: str | None = None,
        title: str | None = None,
        anonymous: bool = False,
        tradeoff: bool | None = None,
    ) -> Path:
        """Write a report to `path` and return the path; what is there is written over.

        The form goes by the ending: .html is one page that opens offline, .txt is text of 80 columns, .json the data,
        .svg and .png a picture, .chrome.json a file for Perfetto and chrome://tracing. `form` says it in another way:
        "html", "txt", "json", "svg", "png" or "chrome". `anonymous` leaves out names and paths.
        `tradeoff=True` adds what other budgets would cost, which may mean planning for them; `False` leaves that out.
        """
        return _renderer().report(self, path, form=form, title=title, anonymous=anonymous, tradeoff=tradeoff)

    def _repr_html_(self) -> str | None:
        return _renderer().html(self)

    def _repr_svg_(self) -> str | None:
        return _renderer().svg(self)
