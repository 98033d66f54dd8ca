"""WHAT TO SHOW: from plans, traces and profiles to pages, pictures, text and files for other tools.

In: what was planned or run. Out: a file, in the format that its name says. `report_subject.py` says what a report is
about, `timeline.py` and `summary.py` compute all that is shown, `cards.py`, `tables.py` and `tips.py` put it into
words; `html.py`, `plain_text.py`, `svg.py` and `chrome_trace.py` only lay it out, and `formats.py` writes it.
"""

from remat.reporting.formats import FORMATS, report, text_report
from remat.reporting.html import MARK
from remat.reporting.notebook import register

__all__ = ["FORMATS", "MARK", "report", "text_report"]

register()
