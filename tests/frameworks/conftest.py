"""What the tests of all frameworks share."""

import pytest

import remat


@pytest.fixture
def profiler():
    """The checkpoint profiler, counting."""
    found = remat.CheckpointProfiler
    found.reset_statistics()
    found.start_tracking()
    yield found
    found.stop_tracking()
    found.reset_statistics()
