"""THE LANGUAGE: ops, schedules made of them, the rules that make one legal, and what one costs.

In: a problem and a sequence of ops, from a planner or from a file. Out: a `Verdict` (is it legal?) and a `Trace`
(what happens, op by op). Planners write this language, the interpreter reads it; neither knows the other.
"""

from remat.ops import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn
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
    "Keep",
    "Live",
    "Op",
    "Pullback",
    "Record",
    "Schedule",
    "Trace",
    "Turn",
    "Verdict",
    "simulate",
    "verify",
]
