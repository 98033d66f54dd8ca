"""WHO DECIDES: planners and the plans they make.

A planner turns a `Problem` and a `Memory` into a `Plan`: a schedule, what is proved about it, and its predicted cost.
Each planner has one file (those for loops in `loop/`) and a line in `registry.py`; `dp/` has the recurrences.
"""

from remat.planners.auto import Auto
from remat.planners.claim import Claim, Prediction
from remat.planners.exhaustive import Exhaustive
from remat.planners.loop.binomial import Binomial
from remat.planners.loop.chunks import Chunks
from remat.planners.loop.keep_all import KeepAll
from remat.planners.loop.levels import Levels
from remat.planners.loop.mixed import Mixed
from remat.planners.loop.online import Online
from remat.planners.loop.online_driver import Driver
from remat.planners.loop.save_points import SavePoints, save_points
from remat.planners.plan import Plan
from remat.planners.planner import Planner
from remat.planners.planning import plan
from remat.planners.registry import PLANNERS, find_planner
from remat.planners.sweeping import Curve, Point, sweep

__all__ = [
    "PLANNERS",
    "Auto",
    "Binomial",
    "Chunks",
    "Claim",
    "Curve",
    "Driver",
    "Exhaustive",
    "KeepAll",
    "Levels",
    "Mixed",
    "Online",
    "Plan",
    "Planner",
    "Point",
    "Prediction",
    "SavePoints",
    "find_planner",
    "plan",
    "save_points",
    "sweep",
]
