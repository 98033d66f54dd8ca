"""A table of a report: rows of text, laid out by each format in its own way."""

from dataclasses import dataclass

__all__ = ["Folded", "Table"]


class Folded(str):
    """A cell in a few words, with `more` to say: the page unfolds it on a click, text says both."""

    more: str

    def __new__(cls, short: str, more: str) -> "Folded":
        """The short words, which are the text itself."""
        cell = super().__new__(cls, short)
        cell.more = "" if more == short else more
        return cell


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; columns after the first are aligned to the right if they are `numbers`."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    numbers: bool = True
    picture: str = ""  # an SVG that the page shows above it
    narrow: str = ""  # the same for a phone
    headline: str = ""  # above all of it
    tips: tuple[str, ...] = ()  # below its headline and picture
