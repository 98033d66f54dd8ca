"""HOW IT RUNS: the one interpreter of schedules, and the protocol that a framework's backend implements for it.

In: a schedule's ops and a framework's backend. Out: the result at the turn, the cotangent of state 0 at the end.
"""

from remat.execute.backend_protocol import Backend
from remat.execute.interpreter import Interpreter
from remat.execute.recomputation import is_recomputing

__all__ = ["Backend", "Interpreter", "is_recomputing"]
