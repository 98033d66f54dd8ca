"""Checkpoints, counted: how many segments were run without keeping what their backward needs, and how much that is."""

import threading
from typing import ClassVar

__all__ = ["CheckpointProfiler"]


class CheckpointProfiler:
    """Counts the checkpoints of all threads between `start_tracking` and `stop_tracking`.

    Only first runs count: a segment that runs again because another one is recomputed saves nothing more. The bytes of
    a checkpoint are those that plain differentiation would have kept for its backward and that were let go: without
    the segment's inputs, which it holds itself, without its results, which the caller holds, and without parameters,
    which are there anyway. A call that has nothing to differentiate is no checkpoint.

    >>> import autograd.numpy as np, numpy, remat
    >>> from autograd import grad
    >>> remat.CheckpointProfiler.reset_statistics()
    >>> remat.CheckpointProfiler.start_tracking()
    >>> slope = grad(lambda x: np.sum(remat.checkpoint(lambda x: np.tanh(np.tanh(x)), x)))(numpy.ones(1000))
    >>> remat.CheckpointProfiler.stop_tracking()
    >>> remat.CheckpointProfiler.checkpoint_count(), remat.CheckpointProfiler.memory_saved() >= 8_000
    (1, True)
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _tracking: ClassVar[bool] = False
    _bytes: ClassVar[int] = 0
    _count: ClassVar[int] = 0

    @classmethod
    def start_tracking(cls) -> None:
        """Checkpoints are counted from now on, beside those that were counted before."""
        with cls._lock:
            CheckpointProfiler._tracking = True

    @classmethod
    def stop_tracking(cls) -> None:
        """Checkpoints are not counted any more; what was counted stays."""
        with cls._lock:
            CheckpointProfiler._tracking = False

    @classmethod
    def reset_statistics(cls) -> None:
        """Nothing is counted yet."""
        with cls._lock:
            CheckpointProfiler._bytes = CheckpointProfiler._count = 0

    @classmethod
    def is_tracking(cls) -> bool:
        """Whether checkpoints are counted."""
        return CheckpointProfiler._tracking

    @classmethod
    def memory_saved(cls) -> int:
        """Bytes that the counted checkpoints did not keep."""
        return CheckpointProfiler._bytes

    @classmethod
    def checkpoint_count(cls) -> int:
        """How many checkpoints were counted."""
        return CheckpointProfiler._count

    @classmethod
    def note(cls, size: int) -> None:
        """Count a checkpoint that did not keep so many bytes."""
        with cls._lock:
            CheckpointProfiler._bytes += size
            CheckpointProfiler._count += 1
