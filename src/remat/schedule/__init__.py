"""THE LANGUAGE: ops, schedules of ops, the rules that make a schedule legal, and its cost.

From a problem and a sequence of ops (from a planner or a file), `verify` gives a `Verdict` (is it legal?) and
`simulate` a `Trace` (what happens, op by op). Planners write this language and the interpreter reads it; neither
depends on the other.
"""

from remat.ops import Advance, Drop, Fetch, Free, Keep, Op, Pullback, Record, Run, Turn
from remat.schedule.events import Event
from remat.schedule.live import Live
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import simulate
from remat.schedule.trace import Trace
from remat.schedule.verify import Verdict, verify

__all__ = [
    "Advance",
    "Drop",
    "Event",
    "Fetch",
    "Free",
    "Keep",
    "Live",
    "Op",
    "Pullback",
    "Record",
    "Run",
    "Schedule",
    "Trace",
    "Turn",
    "Verdict",
    "simulate",
    "verify",
]
