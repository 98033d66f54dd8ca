"""WHAT HAPPENED: profiles of remat calls, with their call sites, plans and measured runs.

| file | content |
|---|---|
| `profiler.py` | `remat.profile()`: the active profiles, and the table per call site |
| `call_record.py` | one call, with its site, plan and runs, as a profile stores and saves it |
| `trace_recorder.py` | the observer of the interpreter that measures one run |
| `segment_passes.py` | the order in which checkpointed segments run, recompute and pull back |
| `source_location.py` | the file and line of a call or of a step |
| `checkpoint_profiler.py` | a counter of checkpoints and of the bytes they save |
"""

from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import Profile, profile

__all__ = ["CallRecord", "CheckpointProfiler", "Profile", "profile"]
