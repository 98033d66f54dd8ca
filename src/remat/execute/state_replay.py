"""State replay: recomputed steps and segments draw the same random numbers as in their first run.

In: replayable states (`rng_state.py`), to which the generators of `random` and `np.random` are always added. A loop
(`StateReplay`) takes one snapshot for each kept state, a segment (`SegmentReplay`) one before its first run. Neither
costs memory where no state is used: unused states share their initial snapshot, or are forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

from remat.execute.python_state import PythonState
from remat.execute.rng_state import ReadState, ReplayableState, global_rng_states

__all__ = ["SegmentReplay", "StateReplay", "exchanged", "preserved_state", "set_states"]


class _Tracked:
    """A replayable state, what it was at first, and whether it was seen to change since (`used`).

    One that `is_later` was changed after the first sweep, by others than steps; a tape that `is_saved` in has it by
    reference.
    """

    __slots__ = ("_version", "initial", "is_contents", "is_later", "is_read", "is_saved", "state", "used")

    def __init__(self, state: ReplayableState) -> None:
        self.state, self.initial, self.used = state, state.get(), False
        self._version = state.version(self.initial)
        self.is_read, self.is_contents = getattr(state, "is_read", False), isinstance(state, PythonState)
        self.is_later = self.is_saved = False

    def is_other(self) -> bool:
        """Whether it is other than at first."""
        return bool(self.state.version() != self._version)

    def forget_version(self) -> None:
        """Never ask again."""
        self._version = None


class StateReplay:
    """The replayable states of one loop: snapshots of all of them, from which they can be restored."""

    def __init__(self, replayable_states: Sequence[ReplayableState] = ()) -> None:
        self._tracked = [_Tracked(state) for state in (*global_rng_states(), *replayable_states)]
        self.initial = [each.initial for each in self._tracked]
        read = [(k, each) for k, each in enumerate(self._tracked) if each.is_read]
        self._read = {is_it: [pair for pair in read if pair[1].is_contents == is_it] for is_it in (True, False)}

    @property
    def used(self) -> bool:
        """Whether any state was seen to change."""
        return any(each.used for each in self._tracked)

    def note_later_changes(self) -> None:
        """Count what was written after the first sweep as used, if it `is_read`: the steps may have read it.

        A generator that they did not draw from is none that they read.
        """
        for _, each in (*self._read_unseen(contents=True), *self._read_unseen(contents=False)):
            each.used, each.is_later = True, not each.is_contents

    @contextmanager
    def noting_use(self) -> Iterator[None]:
        """A block that records steps, whose tape may have by reference what was written after the first sweep."""
        later = [each for each in self._tracked if each.is_later and not each.is_saved]
        ends = [(each, cast(ReadState, each.state).watch_use()) for each in later]
        try:
            yield
        finally:
            for each, end in ends:
                each.is_saved = end()

    def settle(self, *, contents: bool) -> None:
        """Put back what was not seen to change, and has changed since: it had returned to its initial state.

        A flag that two steps flip, or an average that comes out the same, is another one between them. With `contents`
        those of containers, which hooks write into, too: before each pullback. Without, all others: after the last one.
        """
        set_states((each.state, each.initial) for _, each in self._read_unseen(contents))

    def take_contents(self, outside: Any) -> Any:
        """Count contents as used that a pullback has changed, and put them back; `outside`, a snapshot, has them then.

        Such are the logs of hooks, which are to stay when the reverse sweep is over.
        """
        for k, each in self._read_unseen(contents=True):
            outside = outside or [None] * len(self.initial)
            outside[k], each.used = each.state.get(), True
            each.state.set(each.initial)
        return outside

    def _read_unseen(self, contents: bool) -> list[tuple[int, _Tracked]]:
        """The states that steps may read, that were not seen to change and are other than at first, by their index."""
        return [pair for pair in self._read[contents] if not pair[1].used and pair[1].is_other()]

    def initial_of_read(self) -> list[Any]:
        """The initial states of what the steps have changed or may have read, to repeat them later; None for others."""
        return [each.initial if each.used or each.is_read else None for each in self._tracked]

    def snapshot(self) -> Any:
        """The states now; where nothing was used, the very list of initial states, which takes no memory."""
        for each in self._tracked:
            # Once used, always used: restoring the initial state brings its first version back, too.
            each.used = each.used or each.is_other()
        return (
            [each.state.get() if each.used else each.initial for each in self._tracked] if self.used else self.initial
        )

    def restore(self, snapshot: Any) -> None:
        """Set the used states back to a snapshot; None restores nothing."""
        for each, state in zip(self._tracked, snapshot or (), strict=bool(snapshot)):
            if each.used and state is not None:
                each.state.set(state)

    def rewind(self, snapshot: Any) -> None:
        """Set back to a snapshot all that steps have changed since, whether or not that was noted already."""
        self.snapshot()  # for its side effect: it notes what was used
        self.restore(snapshot)

    def present(self) -> Any:
        """The used states now; None for others."""
        return [each.state.get() if each.used else None for each in self._tracked]

    def go_outside(self, outside: Any) -> Any:
        """Put in the used ones of the states outside of the sweep, and return what they were, to come back to.

        None for those that are not used, and for those that a tape has by reference: its pullback is to see them as the
        steps did.
        """
        inside = [each.state.get() if each.used and not each.is_saved else None for each in self._tracked]
        self.restore([None if mine is None else theirs for mine, theirs in zip(inside, outside, strict=True)])
        return inside

    def come_back(self, inside: Any, outside: Any) -> Any:
        """Put the states of the sweep in again, and return those outside of it, as they are now."""
        pairs = zip(self._tracked, inside, outside, strict=True)
        now = [theirs if mine is None else each.state.get() for each, mine, theirs in pairs]
        self.restore(inside)
        return now


class SegmentReplay:
    """The replayable states of one segment before its first run; `forget_unused` drops the others after it."""

    def __init__(self, replayable_states: Sequence[ReplayableState]) -> None:
        self._tracked = [_Tracked(state) for state in (*global_rng_states(), *replayable_states)]

    def forget_unused(self) -> None:
        """Drop the snapshots of states that the segment did not change."""
        self._tracked = [each for each in self._tracked if each.is_other()]
        for each in self._tracked:
            each.forget_version()

    def rewind(self) -> None:
        """Set the states back to what they were before the first run."""
        set_states(self._snapshots())

    def rewound(self) -> AbstractContextManager[None]:
        """A block in which the states start as they were before the first run; afterwards they are as before it."""
        return exchanged(self._snapshots()) if self._tracked else nullcontext()

    def _snapshots(self) -> list[tuple[ReplayableState, Any]]:
        return [(each.state, each.initial) for each in self._tracked]


@contextmanager
def exchanged(snapshots: Iterable[tuple[ReplayableState, Any]]) -> Iterator[None]:
    """A block in which states start from these snapshots, or as they are if that is None; then they are as before."""
    snapshots = list(snapshots)
    outside = [(replayable, replayable.get()) for replayable, _ in snapshots]
    try:
        set_states((replayable, snapshot) for replayable, snapshot in snapshots if snapshot is not None)
        yield
    finally:
        set_states(outside)


def set_states(snapshots: Iterable[tuple[ReplayableState, Any]]) -> None:
    """Set states back to snapshots."""
    for replayable, snapshot in snapshots:
        replayable.set(snapshot)


def preserved_state(states: Sequence[ReplayableState], to: Sequence[Any] | None = None) -> AbstractContextManager[None]:
    """A block after which these and the global generators are as before it; `to`: the snapshots that it starts from."""
    every = [*global_rng_states(), *states]
    return exchanged(zip(every, to or [None] * len(every), strict=True))
