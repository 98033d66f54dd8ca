"""The protocol of a memory meter: allocated bytes and their peak, for measuring and profiling; and what is free.

Free memory of the host is what the system can make available (page cache included), or what the control group of a
container has left, if that is less. What it misses: limits of groups above the container's own, and swap.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from remat.errors import ProblemError

__all__ = ["Meter", "fraction_of_free", "free_host_bytes"]

_SYSTEM = Path("/")  # where the kernel's files are
# The files of a control group, of version 2 and of version 1: its limit, what it uses, and its statistics, in which
# `inactive_file` (`total_inactive_file`) is page cache that can be given back.
_GROUPS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat", "inactive_file"),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file",
    ),
)


class Meter(Protocol):
    """Counts the bytes that a framework has allocated on its device."""

    def counting(self) -> AbstractContextManager[Any]:
        """A block in which allocations are counted; counting may make the program slower."""
        ...

    def now(self) -> int:
        """Bytes that are allocated now."""
        ...

    def peak(self) -> int:
        """The most bytes that were allocated since the last call of `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Let the peak start from what is allocated now."""
        ...


def free_host_bytes(system: Path = _SYSTEM) -> int | None:
    """Bytes that are free on the host and in the container, or None where the operating system does not say."""
    available = _statistic(system / "proc/meminfo", "MemAvailable:")
    candidates = [] if available is None else [available * 1024]
    for limit_file, usage_file, statistics, cache_name in _GROUPS:
        limit, used = _number(system / limit_file), _number(system / usage_file)
        if limit is not None and used is not None:
            candidates.append(max(0, limit - used + (_statistic(system / statistics, cache_name) or 0)))
    return min(candidates, default=None)


def fraction_of_free(fraction: float, free_bytes: Callable[[], int | None] | None) -> int:
    """A fraction of the bytes that are free on the device, or on the host."""
    if not 0.0 < fraction <= 1.0:
        raise ProblemError(f"memory={fraction!r}: a fraction of what is free lies between 0 and 1")
    free = None if free_bytes is None else free_bytes()
    free = free_host_bytes() if free is None else free
    if free is None:
        raise ProblemError("this system does not say how much memory is free: give memory= in bytes")
    return int(free * fraction)


def _number(file: Path) -> int | None:
    """The number in a file; None without the file, or if it says "max": there is no limit then."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _statistic(file: Path, name: str) -> int | None:
    """The number after a name in a file of lines."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
        return next((int(words[1]) for words in lines if words[:1] == [name]), None)
    except (OSError, ValueError):
        return None
