"""WHAT TO SHOW: from plans, traces and profiles to pages, pictures, text and files for other tools.

In: what was planned or done. Out: a file, in the form that its name asks for. `subjects.py` says what a report is
about, `timeline.py` and `summary.py` compute all that is shown, `cards.py`, `tables.py` and `tips.py` put it into
words; `html.py`, `text.py`, `pictures.py` and `chrome.py` only lay it out, and `forms.py` writes it.
"""

from remat.reporting.formats import FORMATS, report, text_report
from remat.reporting.html import MARK
from remat.reporting.notebook import register

__all__ = ["FORMATS", "MARK", "report", "text_report"]

register()
