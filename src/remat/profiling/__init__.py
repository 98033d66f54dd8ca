"""WHAT HAPPENED: profiles of remat calls, measured and counted, and where in the user's code they were made."""

from remat.profiling.call_record import CallRecord
from remat.profiling.checkpoint_profiler import CheckpointProfiler
from remat.profiling.profiler import Profile, profile

__all__ = ["CallRecord", "CheckpointProfiler", "Profile", "profile"]
