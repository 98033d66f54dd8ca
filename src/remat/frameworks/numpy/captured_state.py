"""What a step or segment changes besides its results, and starts from again when it is recomputed or measured.

The rule: random generators (closed over, or leaves of the carry), the contents of the lists, dicts and objects that it
reaches (`execute/python_state.py`), and the numbers in small arrays that no gradient flows to are as they were at that
step for its recomputation, and as they were before it afterwards. So counters, logs, ring buffers and histograms count
every step once.

What it can miss: iterators, generators of other libraries, objects with `__slots__`, arrays of more than SMALL bytes
in all. The comparison of recomputed states finds out a step that depends on those.

The cost, at each kept state as long as nothing has changed: a comparison of the contents, and a checksum of the arrays,
20 us for all of SMALL.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from zlib import crc32

import numpy as np

from remat.closures.bytecode import has_augmented_assignment
from remat.closures.capture import ConvertedClosure
from remat.closures.closure_search import ClosureSearch
from remat.closures.new_contents import NewContents
from remat.execute.python_state import Contents
from remat.execute.rng_state import private_rng_state
from remat.execute.state_replay import SegmentReplay
from remat.frameworks.numpy.protection import StepMode
from remat.frameworks.numpy.tape import ActiveTraces
from remat.pytree import Leaf, PyTree

__all__ = ["ArrayContents", "CapturedStep", "Environment"]

SMALL = 2**16  # bytes of all arrays whose numbers are put back; the smallest ones first


class ArrayContents:
    """The numbers in an array as a replayable state (rng_state.py)."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # the user's own, which is written into when it is put back

    def version(self, snapshot: np.ndarray | None = None) -> int:
        """A checksum: unequal ones mean that the numbers have changed."""
        return crc32(self.array.tobytes())

    def get(self) -> np.ndarray:
        """A copy of the numbers."""
        return self.array.copy()

    def set(self, snapshot: np.ndarray) -> None:
        """Write them back."""
        np.copyto(self.array, snapshot)


class _NumpyContents(NewContents):
    """Contents with the numbers of small arrays that steps have made."""

    def value_of(self, leaf: object) -> ArrayContents | None:
        """The numbers of a new array."""
        return next(iter(_small([leaf])), None) if isinstance(leaf, np.ndarray) else None


class CapturedStep(ConvertedClosure):
    """A step or segment after closure conversion, with all that it may change besides its results.

    `leaves` are those of its first carry, among which there may be random generators.
    """

    def __init__(self, step: Callable[..., PyTree], *others: object, leaves: Sequence[Leaf] = ()) -> None:
        traces = ActiveTraces()
        # The search takes note of a generator wherever it comes upon one.
        search = ClosureSearch(
            traces, [step, *others, *(leaf for leaf in leaves if private_rng_state(leaf) is not None)]
        )
        super().__init__(step, search, search.captures)
        self.arrays, self.containers = traces.arrays, search.containers  # plain ones that it reaches
        self._others = [*search.generators, *_small(self.arrays)]
        self.replayable_states = [*self._others, *([_NumpyContents(self.containers)] if self.containers else [])]

    mode = StepMode.PLAIN

    @property
    def may_write(self) -> bool:
        """Whether its code has operators such as `+=`, which write into plain arrays and make new ones of boxes."""
        return any(map(has_augmented_assignment, self.cache_key))

    def contents(self) -> Contents:
        """What the containers that it reaches have in them now."""
        return Contents.of(self.containers)

    def environment(self) -> "Environment":
        """The environment in which a segment is called now."""
        return Environment(SegmentReplay(self._others), self.contents())


class Environment:
    """What a segment may read and change besides its arguments, as it was when the segment was called.

    Of generators and arrays only those are held that the segment has changed. Contents are references, and are held all
    the same: the program may change them before the segment is recomputed.
    """

    def __init__(self, replay: SegmentReplay, contents: Contents) -> None:
        self._replay, self.contents = replay, contents

    def forget_unused(self) -> None:
        """Drop what the segment, which has run, did not change."""
        self._replay.forget_unused()

    def restore(self) -> None:
        """Let all be as it was at the call, as long as nothing is forgotten."""
        self._replay.rewind()
        self.contents.restore()

    @contextmanager
    def at_call(self) -> Iterator[None]:
        """A block that starts in this environment, and after which all is as it was before the block."""
        # Contents first and last: what is rewound between them may be reached only through them.
        outside = Contents.of(self.contents.containers())
        try:
            self.contents.restore()
            with self._replay.rewound() if self._replay.used else nullcontext():
                yield
        finally:
            outside.restore()


def _small(arrays: Iterable[np.ndarray]) -> list[ArrayContents]:
    """The contents of the arrays that can be written into, as far as they have no more than SMALL bytes together."""
    room, found = SMALL, []
    for array in sorted(arrays, key=lambda array: array.nbytes):
        room -= array.nbytes
        if room < 0:
            break
        # Bytes of objects are addresses, and a copy of them would not be one of the objects.
        if array.flags.writeable and not array.dtype.hasobject:
            found.append(ArrayContents(array))
    return found
