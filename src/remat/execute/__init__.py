"""HOW IT RUNS: the one interpreter of schedules, and what it needs of a framework.

In: a schedule's ops and a framework's verbs (`verbs.py`). Out: the result at the turn, the cotangent of state 0 at the
end, and a `Trace` of what happened for whoever profiles. `tree.py` takes nested containers apart for all
frameworks, `captured.py` finds what a step closes over; `guard.py` watches for steps that do not repeat themselves,
`rng.py` makes random ones repeat.
"""

from remat.execute.calls import Call
from remat.execute.checkpoints import CheckpointProfiler
from remat.execute.profiler import Profile, profile
from remat.execute.recomputing import is_recomputing
from remat.execute.run import Run
from remat.execute.verbs import Verbs

__all__ = ["Call", "CheckpointProfiler", "Profile", "Run", "Verbs", "is_recomputing", "profile"]
