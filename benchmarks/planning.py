"""Planning against its nearest peer, checkpoint_schedules, in one process: plan and iterate all ops, print ratios.

Run: make bench, or python benchmarks/planning.py [--quick]. The peer's mixed planner takes minutes at s=100.
"""

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable

import checkpoint_schedules as peer
from checkpoint_schedules import StorageType

from remat import Level, Loop, Memory, plan, verify


def seconds(run: Callable[[], object], repeats: int = 1) -> float:
    """The least time of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def drain(ops: object) -> int:
    """Iterate everything; how many there were."""
    return sum(1 for _ in ops)  # type: ignore[attr-defined]


def two_levels(ram: int, disk: int) -> Memory:
    """RAM that is free and a disk that is not."""
    return Memory(levels=[Level("ram", slots=ram), Level("disk", slots=disk, read=2, write=2)])


def compare(name: str, target: float | None, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
    """Time both in this process and print the ratio beside its target."""
    mine, other = seconds(ours, 3), seconds(theirs)
    aim = "" if target is None else f"  (target {target:.0f}x: {'met' if other / mine >= target else 'MISSED'})"
    print(f"{name:<44}{mine:>10.4f} s{other:>10.2f} s{other / mine:>9.0f}x{aim}", flush=True)


def against_the_peer(quick: bool) -> None:
    """Plan and iterate n=1000 with each planner and its peer."""
    print(f"{'n=1000, plan and iterate all ops':<44}{'remat':>12}{'peer':>12}{'ratio':>10}")
    for s in (10,) if quick else (10, 31, 100):
        ours = lambda s=s: drain(plan(Loop(1000), slots=s, planner="binomial").schedule)  # noqa: E731
        compare(f"binomial, s={s}  | Revolve", 300 if s == 31 else None, ours, lambda s=s: drain(peer.Revolve(1000, s)))
    for s in (10,) if quick else (10, 31, 100):
        ours = lambda s=s: drain(plan(Loop(1000), slots=s, planner="mixed").schedule)  # noqa: E731
        theirs = lambda s=s: drain(peer.MixedCheckpointSchedule(1000, s, storage=StorageType.RAM))  # noqa: E731
        compare(f"mixed, s={s}  | MixedCheckpointSchedule", 50 if s == 100 else None, ours, theirs)
    for s in (10,) if quick else (10, 31, 100):
        ours = lambda s=s: drain(plan(Loop(1000), two_levels(s, s), planner="levels").schedule)  # noqa: E731
        compare(f"levels, {s}+{s}  | HRevolve", 20, ours, lambda s=s: drain(peer.HRevolve(1000, s, s)))


def growth() -> None:
    """How the cost of planning grows with n and s; the peer is quadratic in n."""
    print(f"\n{'planning alone':<44}{'time':>12}   forward steps   claim")
    for name, n, s in (
        *(("binomial", n, 100) for n in (10**3, 10**6, 10**9)),
        *(("mixed", n, 31) for n in (250, 500, 1000, 2000)),
        *(("mixed", 1000, s) for s in (10, 100, 300)),
        *(("mixed", n, 100) for n in (10**4, 10**5, 10**6, 10**9)),
        *(("levels", n, 31) for n in (250, 500, 1000, 2000)),
        *(("levels", 1000, s) for s in (10, 100, 300)),
        *(("levels", n, 31) for n in (10**4, 10**5)),
        *(("online", n, 31) for n in (10**3, 10**4, 10**5)),
    ):
        memory = two_levels(s, s) if name == "levels" else Memory(slots=s)
        took = seconds(lambda name=name, n=n, memory=memory: plan(Loop(n), memory, planner=name))
        found = plan(Loop(n), memory, planner=name)
        print(f"{name + f', n={n:,}, s={s}':<44}{took:>10.4f} s{found.forward_steps:>16,}   {found.claim}", flush=True)


def streaming(quick: bool) -> None:
    """A million steps: all ops iterated, in memory that does not grow with n."""
    print(f"\n{'binomial, s=100, all ops streamed':<44}{'time':>12}{'ops':>12}   peak of Python memory")
    for n in (10**4, 10**5) if quick else (10**4, 10**5, 10**6):
        took = seconds(lambda n=n: drain(plan(Loop(n), slots=100).schedule))
        tracemalloc.start()
        count = drain(plan(Loop(n), slots=100).schedule)  # slower than above, for being traced
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{f'n={n:,}':<44}{took:>10.2f} s{count:>12,}   {size / 2**20:.3f} MB", flush=True)
    took = seconds(lambda: verify(plan(Loop(10**5), slots=100).schedule, Loop(10**5), Memory(slots=100)))
    print(f"{'n=100,000 verified':<44}{took:>10.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out what takes the peer longer than seconds")
    quick = parser.parse_args().quick
    print(f"Python {sys.version.split()[0]}, checkpoint_schedules 1.0.4\n")
    against_the_peer(quick)
    growth()
    streaming(quick)
