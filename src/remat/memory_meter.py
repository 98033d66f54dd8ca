"""The memory meter protocol (allocated bytes and their peak), and how much memory is free.

Free host memory is what the system can make available (page cache included), or what a control group has left (that of
the container, of the job, or one around it), whichever is less. What it misses: groups outside the container, and swap.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from remat.errors import ProblemError

__all__ = ["Meter", "fraction_of_free", "free_host_bytes"]

_SYSTEM = Path("/")  # /proc and /sys are below it; tests pass another folder
# By version of control groups: the controller that /proc/self/cgroup names, the folder of all groups, a group's files
# of limit and usage, and the statistic of memory.stat that counts reclaimable page cache.
_VERSIONS = (
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class Meter(Protocol):
    """Counts the bytes that a framework has allocated on its device."""

    def counting(self) -> AbstractContextManager[Any]:
        """A context in which allocations are counted; counting may slow the program down."""
        ...

    def now(self) -> int:
        """Bytes allocated now."""
        ...

    def peak(self) -> int:
        """The most bytes allocated at once since the last call of `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Start a new peak from the bytes allocated now."""
        ...


def free_host_bytes(system: Path = _SYSTEM) -> int | None:
    """Bytes free on the host, within the container's limit; None where the operating system does not say."""
    available = _statistic(system / "proc/meminfo", "MemAvailable:")
    candidates = [] if available is None else [available * 1024]
    for controller, root, limit_file, usage_file, cache_name in _VERSIONS:
        for group in _groups(system, controller, system / root):
            limit, used = _number(group / limit_file), _number(group / usage_file)
            if limit is not None and used is not None:
                candidates.append(max(0, limit - used + (_statistic(group / "memory.stat", cache_name) or 0)))
    return min(candidates, default=None)


def _groups(system: Path, controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group and of those around it.

    The last one is the root, which is the container's own group where the container sees no other.
    """
    try:
        rows = [row.split(":", 2) for row in (system / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        rows = []
    names = [name for _, controllers, name in rows if controller in controllers.split(",")]
    for name in names:
        path = PurePosixPath(name.lstrip("/"))
        yield from (root / each for each in (path, *path.parents) if each != PurePosixPath())
    yield root


def fraction_of_free(fraction: float, free_bytes: Callable[[], int | None] | None) -> int:
    """A fraction of the free bytes of the device, or of the host if `free_bytes` is None or returns None."""
    if not 0.0 < fraction <= 1.0:
        raise ProblemError(f"memory={fraction!r}: a fraction of what is free lies between 0 and 1")
    free = None if free_bytes is None else free_bytes()
    free = free_host_bytes() if free is None else free
    if free is None:
        raise ProblemError("this system does not say how much memory is free: give memory= in bytes")
    return int(free * fraction)


def _number(file: Path) -> int | None:
    """The number in a file; None if there is no such file or it says "max", which means no limit."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _statistic(file: Path, name: str) -> int | None:
    """The number that follows `name` at the start of a line; None if the file has no such line."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
        return next((int(words[1]) for words in lines if words[:1] == [name]), None)
    except (OSError, ValueError):
        return None
