"""WHAT TO SHOW: plans, traces and profiles as pages, pictures, text and files for other tools.

`report_subject.py` collects what a report is about, `timeline.py` and `summary.py` compute everything that is shown,
and `cards.py`, `tables.py` and `tips.py` put it into words. `html.py`, `plain_text.py`, `svg.py` and `chrome_trace.py`
only lay it out, and `formats.py` writes the file in the format that its name implies.
"""

from remat.reporting.formats import FORMATS, report, text_report
from remat.reporting.html import MARK
from remat.reporting.notebook import register

__all__ = ["FORMATS", "MARK", "report", "text_report"]

register()
