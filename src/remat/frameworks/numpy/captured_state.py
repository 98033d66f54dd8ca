"""What a step or segment changes besides its results, replayed when it is recomputed or measured.

The rule: a recomputation starts from the random generators (closed over, or leaves of the carry), the contents of the
lists, dicts and objects that the step reaches (`execute/python_state.py`), and the small arrays that no gradient flows
to, all as they were at that step; afterwards they are restored. So counters, logs, ring buffers and histograms count
every step once.

What it can miss: iterators, generators of other libraries, slots (`closures/stored_attributes.py`), arrays beyond SMALL
bytes in total (`execute/array_state.py`). The comparison of recomputed states detects a step that depends on those.

The cost, at each kept state as long as nothing has changed: a comparison of the contents, and a checksum of the arrays,
20 us for all of SMALL.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from autograd.extend import Box

from remat.closures.bytecode import has_augmented_assignment
from remat.closures.capture import ConvertedClosure
from remat.closures.captures import Captures
from remat.closures.closure_search import ClosureSearch
from remat.closures.new_contents import NewContents
from remat.execute.array_state import small_arrays
from remat.execute.python_state import Contents
from remat.execute.rng_state import private_rng_state
from remat.execute.state_replay import SegmentReplay
from remat.frameworks.numpy.leaves import unpack
from remat.frameworks.numpy.protection import StepMode
from remat.frameworks.numpy.tape import ActiveTraces, Node
from remat.pytree import Leaf, PyTree

__all__ = ["CapturedStep", "Environment"]


_TAKEN = (np.ndarray, np.generic, Box, Node)  # types of values that may be captured


class CapturedStep(ConvertedClosure):
    """A step or segment after closure conversion, with the states that it may change besides its results.

    `leaves` are those of its first carry, which may include random generators.
    """

    def __init__(self, step: Callable[..., PyTree], *others: object, leaves: Sequence[Leaf] = ()) -> None:
        traces = ActiveTraces()
        # The search also notes the generators that it finds. Without traces there is nothing to capture.
        generators = [leaf for leaf in leaves if private_rng_state(leaf) is not None]
        search = ClosureSearch(Captures(traces.accepts, unpack), _TAKEN, [step, *others, *generators] if traces else ())
        super().__init__(step, search, search.captures)
        self.arrays, self.containers = search.arrays, search.containers  # the plain ones that the step reaches
        self._others = [*search.generators, *small_arrays(self.arrays)]
        self.replayable_states = [*self._others, *([NewContents(self.containers)] if self.containers else [])]

    mode = StepMode.PLAIN

    @property
    def may_write(self) -> bool:
        """Whether its code has operators such as `+=`, which write into plain arrays but make new arrays from boxes."""
        return any(map(has_augmented_assignment, self.cache_key))

    def contents(self) -> Contents:
        """The current contents of the containers that it reaches."""
        return Contents.of(self.containers)

    def environment(self) -> "Environment":
        """The current environment, for a segment that is about to be called."""
        return Environment(SegmentReplay(self._others), self.contents())


class Environment:
    """What a segment may read and change besides its arguments, as it was when the segment was called.

    Of generators and arrays, only those that the segment has changed are held. Contents, which are only references, are
    always held: the program may change them before the segment is recomputed.
    """

    def __init__(self, replay: SegmentReplay, contents: Contents) -> None:
        self._replay, self.contents = replay, contents

    def forget_unused(self) -> None:
        """After the segment has run, drop what it did not change."""
        self._replay.forget_unused()

    def restore(self) -> None:
        """Restore everything as it was at the call; only before `forget_unused`."""
        self._replay.rewind()
        self.contents.restore()

    @contextmanager
    def at_call(self) -> Iterator[None]:
        """A context that starts from this environment, and restores the current one at its end."""
        # Contents first and last: the states that are rewound in between may be reachable only through them.
        outside = Contents.of(self.contents.containers())
        try:
            self.contents.restore()
            with self._replay.rewound():
                yield
        finally:
            outside.restore()
