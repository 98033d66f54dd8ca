"""State replay: recomputed steps and segments draw the same random numbers as in their first run.

In: replayable states (`rng_state.py`), to which the generators of `random` and `np.random` are always added. A loop
(`StateReplay`) takes one snapshot for each kept state, a segment (`SegmentReplay`) one before its first run. Neither
costs memory where no state is used: unused states share their initial snapshot, or are forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from remat.execute.python_state import PythonState
from remat.execute.rng_state import ReplayableState, global_rng_states

__all__ = ["SegmentReplay", "StateReplay", "exchanged", "preserved_state", "set_states"]


class StateReplay:
    """The replayable states of one loop: snapshots of all of them, from which they can be restored."""

    def __init__(self, replayable_states: Sequence[ReplayableState] = ()) -> None:
        self.replayable_states = [*global_rng_states(), *replayable_states]
        self.initial = [replayable.get() for replayable in self.replayable_states]
        self.used_flags = [False] * len(self.replayable_states)  # which of them have changed since
        self._versions = [
            replayable.version(snapshot)
            for replayable, snapshot in zip(self.replayable_states, self.initial, strict=True)
        ]
        read = [k for k, state in enumerate(self.replayable_states) if getattr(state, "is_read", False)]
        contents = [k for k in read if isinstance(self.replayable_states[k], PythonState)]
        self._read = {True: contents, False: [k for k in read if k not in contents]}  # by whether they are contents

    @property
    def used(self) -> bool:
        """Whether any state was seen to change."""
        return any(self.used_flags)

    @property
    def used_beside_contents(self) -> bool:
        """Whether any state was seen to change that is more than the contents of the user's containers."""
        pairs = zip(self.replayable_states, self.used_flags, strict=True)
        return any(used and not isinstance(state, PythonState) for state, used in pairs)

    def note_later_changes(self) -> None:
        """Count what was written after the first sweep as used, if it `is_read`: the steps may have read it.

        A generator that they did not draw from is none that they read.
        """
        for k in (*self._read_unseen(contents=True), *self._read_unseen(contents=False)):
            self.used_flags[k] = True

    def settle(self, *, contents: bool) -> None:
        """Put back what was not seen to change, and has changed since: it had returned to its initial state.

        A flag that two steps flip, or an average that comes out the same, is another one between them. With `contents`
        those of containers, which hooks write into, too: before each pullback. Without, all others: after the last one.
        """
        for k in self._read_unseen(contents):
            self.replayable_states[k].set(self.initial[k])

    def take_contents(self, outside: Any) -> Any:
        """Count contents as used that a pullback has changed, and put them back; `outside`, a snapshot, has them then.

        Such are the logs of hooks, which are to stay when the reverse sweep is over.
        """
        for k in self._read_unseen(contents=True):
            outside = outside or [None] * len(self.initial)
            outside[k], self.used_flags[k] = self.replayable_states[k].get(), True
            self.replayable_states[k].set(self.initial[k])
        return outside

    def _read_unseen(self, contents: bool) -> list[int]:
        """The indices of states that steps may read, that were not seen to change and are other than at first."""
        states, versions, used = self.replayable_states, self._versions, self.used_flags
        return [k for k in self._read[contents] if not used[k] and states[k].version() != versions[k]]

    def initial_of_read(self) -> list[Any]:
        """The initial states of what the steps have changed or may have read, to repeat them later; None for others."""
        triples = zip(self.replayable_states, self.used_flags, self.initial, strict=True)
        return [initial if used or getattr(state, "is_read", False) else None for state, used, initial in triples]

    def snapshot(self) -> Any:
        """The states now; where nothing was used, the very list of initial states, which takes no memory."""
        if not self._update_used():
            return self.initial
        triples = zip(self.replayable_states, self.used_flags, self.initial, strict=True)
        return [replayable.get() if used else initial for replayable, used, initial in triples]

    def restore(self, snapshot: Any) -> None:
        """Set the used states back to a snapshot; None restores nothing."""
        triples = zip(self.replayable_states, self.used_flags, snapshot or (), strict=bool(snapshot))
        for replayable, used, state in triples:
            if used and state is not None:
                replayable.set(state)

    def exchange(self, states: Any) -> Any:
        """Put in the used ones of these states, and return what they were; None for states that are not used."""
        present = [r.get() if used else None for r, used in zip(self.replayable_states, self.used_flags, strict=True)]
        self.restore(states)
        return present

    def _update_used(self) -> bool:
        """Whether any state was used, with `used_flags` up to date."""
        for k, used in enumerate(self.used_flags):
            # Once used, always used: restoring the initial state brings its first version back, too.
            if not used:
                self.used_flags[k] = self.replayable_states[k].version() != self._versions[k]
        return any(self.used_flags)


class SegmentReplay:
    """The replayable states of one segment before its first run; `forget_unused` drops the others after it."""

    def __init__(self, replayable_states: Sequence[ReplayableState]) -> None:
        every = [*global_rng_states(), *replayable_states]
        self._snapshots: list[tuple[ReplayableState, Any]] = [(replayable, replayable.get()) for replayable in every]
        self._versions = [replayable.version(snapshot) for replayable, snapshot in self._snapshots]

    def forget_unused(self) -> None:
        """Drop the snapshots of states that the segment did not change."""
        pairs = zip(self._snapshots, self._versions, strict=True)
        self._snapshots = [
            (replayable, snapshot) for (replayable, snapshot), version in pairs if replayable.version() != version
        ]
        self._versions = []

    def rewind(self) -> None:
        """Set the states back to what they were before the first run."""
        set_states(self._snapshots)

    def rewound(self) -> AbstractContextManager[None]:
        """A block in which the states start as they were before the first run; afterwards they are as before it."""
        return exchanged(self._snapshots) if self._snapshots else nullcontext()


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
