"""THE LANGUAGE: ops, schedules made of them, the rules that make one legal, and what one costs.

In: a problem and a sequence of ops, from a planner or from a file. Out: a `Verdict` (is it legal?) and a `Trace`
(what happens, op by op). Planners write this language, the interpreter reads it; neither knows the other.
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
