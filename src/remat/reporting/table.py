"""A table of a report: rows of text, which each format lays out in its own way."""

from dataclasses import dataclass

__all__ = ["Folded", "Table"]


class Folded(str):
    """A short cell with `more` text: the page unfolds it on a click, plain text prints both."""

    more: str

    def __new__(cls, short: str, more: str) -> "Folded":
        """The cell, whose own text is `short`."""
        cell = super().__new__(cls, short)
        cell.more = "" if more == short else more
        return cell


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; with `numbers`, columns after the first are aligned to the right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    numbers: bool = True
    picture: str = ""  # an SVG that the page shows above the table
    narrow: str = ""  # the same picture for a phone
    headline: str = ""  # above everything else
    tips: tuple[str, ...] = ()  # below the headline and the picture
