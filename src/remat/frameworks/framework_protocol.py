"""What a framework's package must offer: the protocol that the registry and the interface rely on."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remat.execute.rng_state import ReplayableState
from remat.loops.legacy_inputs import LeafArrays
from remat.loops.request import LoopRequest
from remat.problem import Chain
from remat.profiling import CallRecord
from remat.pytree import Leaf, PyTree
from remat.segments import CheckpointOptions

__all__ = ["Framework", "FrameworkTraits"]


@dataclass(frozen=True)
class FrameworkTraits:
    """What the registry and messages need to know of a framework."""

    name: str  # in profiles and messages to developers
    title: str  # in messages to users
    array_types: tuple[type, ...]  # all that is an instance of these is its own
    decides_loops: tuple[type, ...] = ()  # a step that captures one of these makes a loop over plain numbers its own
    decides_segments: tuple[type, ...] = ()  # the same for functions that are checkpointed
    mixes: bool = True  # whether its arrays may be arguments next to another framework's: one of the two differentiates
    conversion: str = ""  # a call that makes its arrays from another framework's
    has_policies: bool = False  # whether `policy=` says what a segment keeps
    frees_graphs_at_the_end: bool = False  # of their whole backward, and not as it goes on
    has_scan_options: bool = False  # whether its `scan` takes `reverse` and `unroll`


class Framework(LeafArrays, Protocol):
    """One framework; the module `remat.frameworks.<name>` is one, since modules can satisfy protocols."""

    TRAITS: FrameworkTraits

    def owns(self, leaf: object, /) -> bool:
        """Whether a leaf that is none of its array types can only be this framework's."""
        ...

    def is_module(self, fn: object, /) -> bool:
        """Whether this is a module, with parameters of its own, and not a plain function."""
        ...

    def is_tracing(self) -> bool:
        """Whether the calling code is being traced, so that plain numbers belong to the trace."""
        ...

    def is_differentiating(self) -> bool:
        """Whether a gradient may be asked for of what runs now; if not, a plain loop is left to run as it is."""
        ...

    def put_item(self, x: Leaf, index: object, value: Leaf, /) -> Leaf:
        """The array after `x[index] = value`, differentiable."""
        ...

    def random_states(self) -> Sequence[ReplayableState]:
        """The global random generators that programs draw from."""
        ...

    def is_concrete(self, arrays: Sequence[Leaf], /) -> bool:
        """Whether Python may branch on these arrays."""
        ...

    def segment(
        self,
        function: Callable[..., list[Leaf]],
        arrays: Sequence[Leaf],
        again: Callable[..., list[Leaf]] | None = None,
        /,
    ) -> list[Leaf]:
        """What a function of arrays returns, recomputed in the backward where the framework traces Python (JAX).

        With `again` it is not traced: Python runs it, and `again` in the backward.
        """
        ...

    def integers(self, numbers: range, /) -> Leaf:
        """The numbers of a range as an input of `scan`."""
        ...

    def unstack(self, rows: Leaf, /) -> Sequence[Leaf]:
        """The rows of an array, with one gradient for all of them."""
        ...

    def shares_memory(self, one: Leaf, other: Leaf, /) -> bool:
        """Whether two leaves are one object, or arrays that share memory."""
        ...

    def free_bytes(self, *values: PyTree) -> int | None:
        """Bytes that are free on the device of these values; None if that is the host, or is not known."""
        ...

    def scan(
        self,
        step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
        init: PyTree,
        xs: PyTree,
        length: int | None,
        request: LoopRequest,
        vjp: Callable[..., Any] | None = None,
        rows: dict[int, int] | None = None,
        driven: bool = False,
    ) -> tuple[PyTree, PyTree]:
        """The last carry and the stacked outputs of all steps, or of those that `rows` maps to a row."""
        ...

    def while_loop(
        self,
        cond: Callable[[PyTree], object],
        body: Callable[[PyTree], PyTree],
        init: PyTree,
        max_steps: int | None,
        request: LoopRequest,
    ) -> PyTree:
        """The first carry for which `cond` does not hold, or the one after `max_steps`."""
        ...

    def checkpoint(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CheckpointOptions,
        call: CallRecord | None = None,
    ) -> Any:
        """What `fn(*args, **kwargs)` returns; its residuals are recomputed in the backward pass."""
        ...

    def checkpoint_module(self, module: Any, options: CheckpointOptions) -> Any:
        """The module, each call of which is checkpointed."""
        ...

    def measure_chain(self, stages: Sequence[Callable[[Any], Any]], x: PyTree) -> Chain:
        """The chain of these stages on an input like `x`."""
        ...

    def chain_key(self, stages: Sequence[Callable[[Any], Any]], x: PyTree) -> Hashable | None:
        """What the costs of these stages depend on beside themselves; None where nothing is differentiated."""
        ...
