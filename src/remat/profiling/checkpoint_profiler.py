"""A counter of checkpointed segments and loops, and of the residual bytes that they did not keep."""

import threading
from typing import ClassVar

__all__ = ["CheckpointProfiler"]


class CheckpointProfiler:
    """Counts the checkpoints of all threads between `start_tracking` and `stop_tracking`.

    Only first runs count: a segment inside a recomputed one saves nothing more. The bytes of a checkpoint are those of
    the residuals that plain differentiation would have kept for its backward, without the segment's inputs, which it
    saves itself, its results, which the caller holds, and parameters, which are live anyway. Calls without
    differentiable inputs do not count. A loop (`scan`, `while_loop`) counts once for each planned gradient, with the
    bytes that all its tapes would take beyond the peak of its plan; a plan in slots knows no sizes, and counts 0 bytes.

    >>> import autograd.numpy as np, numpy, remat
    >>> from autograd import grad
    >>> remat.CheckpointProfiler.reset_statistics()
    >>> remat.CheckpointProfiler.start_tracking()
    >>> slope = grad(lambda x: np.sum(remat.checkpoint(lambda x: np.tanh(np.tanh(x)), x)))(numpy.ones(1000))
    >>> remat.CheckpointProfiler.stop_tracking()
    >>> remat.CheckpointProfiler.checkpoint_count(), remat.CheckpointProfiler.memory_saved() >= 8_000
    (1, True)
    """

    # Class attributes, as in the older API: there is one counter for the whole program.
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _tracking: ClassVar[bool] = False
    _bytes: ClassVar[int] = 0
    _count: ClassVar[int] = 0

    @classmethod
    def start_tracking(cls) -> None:
        """Count checkpoints from now on, in addition to those counted before."""
        with cls._lock:
            CheckpointProfiler._tracking = True

    @classmethod
    def stop_tracking(cls) -> None:
        """Stop counting, without resetting the numbers."""
        with cls._lock:
            CheckpointProfiler._tracking = False

    @classmethod
    def reset_statistics(cls) -> None:
        """Reset the numbers to 0."""
        with cls._lock:
            CheckpointProfiler._bytes = CheckpointProfiler._count = 0

    @classmethod
    def is_tracking(cls) -> bool:
        """Whether checkpoints are counted now."""
        return CheckpointProfiler._tracking

    @classmethod
    def memory_saved(cls) -> int:
        """Bytes that the counted checkpoints did not keep."""
        return CheckpointProfiler._bytes

    @classmethod
    def checkpoint_count(cls) -> int:
        """The number of counted checkpoints."""
        return CheckpointProfiler._count

    @classmethod
    def note(cls, size: int) -> None:
        """Count a checkpoint that did not keep `size` bytes."""
        with cls._lock:
            CheckpointProfiler._bytes += size
            CheckpointProfiler._count += 1
