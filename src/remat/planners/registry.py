"""The table of planners, one line each: `plan(..., planner=name)` looks them up, `remat planners` lists them."""

from difflib import get_close_matches
from typing import Any

from remat.errors import PlannerError
from remat.planners.auto import Auto
from remat.planners.chain.all_schedules import AllSchedules
from remat.planners.chain.optimal_chain import OptimalChain
from remat.planners.chain.periodic_segments import PeriodicSegments
from remat.planners.chain.record_all import RecordAll
from remat.planners.exhaustive import Exhaustive
from remat.planners.graph.every_run_order import EveryRunOrder
from remat.planners.graph.optimal_graph import OptimalGraph
from remat.planners.loop.binomial import Binomial
from remat.planners.loop.chunks import Chunks
from remat.planners.loop.keep_all import KeepAll
from remat.planners.loop.levels import Levels
from remat.planners.loop.mixed import Mixed
from remat.planners.loop.online import Online
from remat.planners.loop.save_points import SavePoints
from remat.planners.planner import Planner
from remat.problem import Problem

__all__ = ["PLANNERS", "find_planner", "planner_for"]

PLANNERS: dict[str, type[Planner[Any]]] = {
    "auto": Auto,
    "keep-all": KeepAll,
    "save-points": SavePoints,
    "chunks": Chunks,
    "binomial": Binomial,
    "mixed": Mixed,
    "levels": Levels,
    "online": Online,
    "exhaustive": Exhaustive,
    "chain": OptimalChain,
    "chain-keep-all": RecordAll,
    "chain-segments": PeriodicSegments,
    "chain-exhaustive": AllSchedules,
    "graph": OptimalGraph,
    "graph-exhaustive": EveryRunOrder,
}


def find_planner(planner: str | Planner[Any]) -> Planner[Any]:
    """The planner of that name with default options, or the planner itself.

    >>> find_planner("chunks")
    Chunks(k=None)
    """
    if isinstance(planner, Planner):
        return planner
    if not isinstance(planner, str) or planner not in PLANNERS:
        close = get_close_matches(str(planner)[:40], PLANNERS, 1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise PlannerError(f"there is no planner {str(planner)[:40]!r}{meant}; there are {', '.join(PLANNERS)}")
    return PLANNERS[planner]()


def planner_for(problem: Problem, planner: str | Planner[Any]) -> Planner[Any]:
    """The planner of that name; "auto" means the first in the table that plans problems of this type."""
    if planner == Auto.name:
        planners = (entry for entry in PLANNERS.values() if isinstance(problem, entry.problem_type))
        return next(planners, Auto)()
    return find_planner(planner)
