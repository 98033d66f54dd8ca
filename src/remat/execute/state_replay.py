"""State replay: recomputed steps and segments draw the same random numbers as in their first run.

In: replayable states (`rng_state.py`), to which the generators of `random` and `np.random` are always added. A loop
(`StateReplay`) takes one snapshot for each kept state, a segment (`SegmentReplay`) one before its first run. States
that are not used cost no memory: they share their initial snapshot, or their snapshots are dropped.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

from remat.execute.python_state import PythonState
from remat.execute.rng_state import ReadState, ReplayableState, global_rng_states

__all__ = ["SegmentReplay", "StateReplay", "exchanged", "preserved_state", "set_states"]


class _Tracked:
    """A replayable state, its initial snapshot, and whether it was seen to change since (`used`).

    `is_later`: it was changed after the first sweep, and not by a step. `is_saved`: a tape holds it by reference.
    """

    __slots__ = ("_version", "initial", "is_contents", "is_later", "is_read", "is_saved", "state", "used")

    def __init__(self, state: ReplayableState) -> None:
        self.state, self.initial, self.used = state, state.get(), False
        self._version = state.version(self.initial)
        self.is_read, self.is_contents = getattr(state, "is_read", False), isinstance(state, PythonState)
        self.is_later = self.is_saved = False

    def is_other(self) -> bool:
        """Whether it differs from the initial state."""
        return bool(self.state.version() != self._version)

    def forget_version(self) -> None:
        """Free the initial version; `is_other` must not be called afterwards."""
        self._version = None


class StateReplay:
    """The replayable states of one loop: takes snapshots of all of them, and restores them."""

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
        """Count states that were written after the first sweep as used if they are `is_read`: a step may read them.

        Generators are not `is_read`: a step that reads one also changes it.
        """
        for _, each in (*self._read_unseen(contents=True), *self._read_unseen(contents=False)):
            each.used, each.is_later = True, not each.is_contents

    @contextmanager
    def noting_use(self) -> Iterator[None]:
        """A context that records steps, and notes which states written after the first sweep their tape refers to."""
        later = [each for each in self._tracked if each.is_later and not each.is_saved]
        ends = [(each, cast(ReadState, each.state).watch_use()) for each in later]
        try:
            yield
        finally:
            for each, end in ends:
                each.is_saved = end()

    def settle(self, *, contents: bool) -> None:
        """Restore states that differ now although they had their initial value at every snapshot.

        An example is a flag that every second step flips back. With `contents` this restores containers, into which
        hooks write as well, and is called before each pullback; without, it restores all others, after the last one.
        """
        set_states((each.state, each.initial) for _, each in self._read_unseen(contents))

    def take_contents(self, outside: Any) -> Any:
        """Move contents that a pullback has changed into the snapshot `outside`, and count them as used.

        They are the logs of hooks, for example, which must stay after the reverse sweep.
        """
        for k, each in self._read_unseen(contents=True):
            outside = outside or [None] * len(self.initial)
            outside[k], each.used = each.state.get(), True
            each.state.set(each.initial)
        return outside

    def _read_unseen(self, contents: bool) -> list[tuple[int, _Tracked]]:
        """The states, with their indices, that steps may read, that are not `used` yet and differ from the initial."""
        return [pair for pair in self._read[contents] if not pair[1].used and pair[1].is_other()]

    def initial_of_read(self) -> list[Any]:
        """The initial snapshots of states that steps have changed or may have read, to rerun them; None for others."""
        return [each.initial if each.used or each.is_read else None for each in self._tracked]

    def snapshot(self) -> Any:
        """The current states; if nothing was used, the list of initial states itself, which takes no memory."""
        for each in self._tracked:
            # Once used, always used: restoring the initial state restores its version as well.
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
        """Set all states that steps have changed back to a snapshot, even those not known to be used yet."""
        self.snapshot()  # for its side effect: it updates `used`
        self.restore(snapshot)

    def present(self) -> Any:
        """The current values of the used states; None for others."""
        return [each.state.get() if each.used else None for each in self._tracked]

    def go_outside(self, outside: Any) -> Any:
        """Set the used states to those outside the sweep, and return those inside it, for `come_back`.

        The result has None for states that are not used, and for those that a tape holds by reference: its pullback
        must see them as the steps did.
        """
        inside = [each.state.get() if each.used and not each.is_saved else None for each in self._tracked]
        self.restore([None if mine is None else theirs for mine, theirs in zip(inside, outside, strict=True)])
        return inside

    def come_back(self, inside: Any, outside: Any) -> Any:
        """Set the states to those inside the sweep again, and return the current ones outside it."""
        pairs = zip(self._tracked, inside, outside, strict=True)
        now = [theirs if mine is None else each.state.get() for each, mine, theirs in pairs]
        self.restore(inside)
        return now


class SegmentReplay:
    """The replayable states of one segment before its first run; `forget_unused` then drops those it did not change."""

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
        """A context that starts from the states before the first run, and restores the current ones at its end."""
        return exchanged(self._snapshots()) if self._tracked else nullcontext()

    def _snapshots(self) -> list[tuple[ReplayableState, Any]]:
        return [(each.state, each.initial) for each in self._tracked]


@contextmanager
def exchanged(snapshots: Iterable[tuple[ReplayableState, Any]]) -> Iterator[None]:
    """A context that starts from these snapshots (None leaves a state as it is), and restores all states at its end."""
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
    """A context that restores these states and the global generators at its end; it starts from the snapshots `to`."""
    every = [*global_rng_states(), *states]
    return exchanged(zip(every, to or [None] * len(every), strict=True))
