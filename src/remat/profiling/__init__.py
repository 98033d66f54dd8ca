"""WHAT HAPPENED: profiles of remat calls, with their call sites, plans and measured runs.

| file | noun |
|---|---|
| `profiler.py` | `remat.profile()`: which profiles are active, and the table per call site |
| `call_record.py` | one call: its site, its plan, its runs, as a profile keeps and saves it |
| `trace_recorder.py` | the observer of the interpreter that measures one run |
| `segment_passes.py` | the order in which checkpointed segments run, recompute and pull back |
| `source_location.py` | file and line of a call or of a step |
| `checkpoint_profiler.py` | a counter of checkpoints and of the bytes that they save |
"""

from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import Profile, profile

__all__ = ["CallRecord", "CheckpointProfiler", "Profile", "profile"]
