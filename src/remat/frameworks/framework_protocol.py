"""The protocol of a framework's package, which the registry and the interface rely on."""

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
    """What the registry and error messages need to know about a framework."""

    name: str  # in profiles and messages to developers
    title: str  # in messages to users
    array_types: tuple[type, ...]  # instances of these belong to this framework
    decides_loops: tuple[type, ...] = ()  # if a step captures one, a loop over plain numbers is this framework's
    decides_segments: tuple[type, ...] = ()  # the same for checkpointed functions
    mixes: bool = True  # whether its arrays may be passed with another framework's; one of the two differentiates
    conversion: str = ""  # a call that converts another framework's arrays to its own
    has_policies: bool = False  # whether `policy=` may say what a segment keeps
    frees_graphs_at_the_end: bool = False  # whether a backward frees its graph at its end, and not node by node
    boxes_floats: bool = False  # whether a step's carry has other objects in place of Python floats
    has_scan_options: bool = False  # whether its `scan` takes `reverse` and `unroll`


class Framework(LeafArrays, Protocol):
    """One framework: the module `remat.frameworks.<name>`, since modules can satisfy protocols."""

    TRAITS: FrameworkTraits

    def owns(self, leaf: object, /) -> bool:
        """Whether a leaf that is not one of its array types can still only belong to this framework."""
        ...

    def is_module(self, fn: object, /) -> bool:
        """Whether this is a module with parameters, rather than a plain function."""
        ...

    def is_tracing(self) -> bool:
        """Whether the calling code is being traced, so that plain numbers belong to the trace."""
        ...

    def is_differentiating(self) -> bool:
        """Whether a gradient may be requested of what runs now; if not, a plain loop runs as it is."""
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
        """What a function of arrays returns; where Python is traced (JAX), the backward recomputes its residuals.

        With `again` the function is not traced: Python runs `function` forward, and `again` in the backward.
        """
        ...

    def tape_bytes(self, function: Callable[..., list[Leaf]], arrays: Sequence[Leaf], /) -> int:
        """The bytes that the backward of a function of arrays keeps beside these, where `segment` recomputes it."""
        ...

    def stays_within_bounds(
        self,
        step: Callable[[PyTree, PyTree], object],
        carry: PyTree,
        x: PyTree,
        ranges: Sequence[range | None],
        /,
    ) -> bool:
        """Whether a step that is traced computes with numbers of these ranges, leaves of `x`, what Python would."""
        ...

    def integers(self, numbers: range, /) -> Leaf:
        """The numbers of a range as an array that `scan` takes as input."""
        ...

    def unstack(self, rows: Leaf, /) -> Sequence[Leaf]:
        """The rows of an array, sharing one gradient."""
        ...

    def shares_memory(self, one: Leaf, other: Leaf, /) -> bool:
        """Whether two leaves are the same object or arrays that share memory."""
        ...

    def free_bytes(self, *values: PyTree) -> int | None:
        """Free bytes on the device of these values; None if the device is the host, or if the number is unknown."""
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
        """The last carry, and the stacked outputs of all steps, or of those steps that `rows` maps to a row."""
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
        """The module, wrapped so that each of its calls is checkpointed."""
        ...

    def measure_chain(self, stages: Sequence[Callable[[Any], Any]], x: PyTree) -> Chain:
        """The chain of these stages, measured on an input like `x`."""
        ...

    def chain_key(self, stages: Sequence[Callable[[Any], Any]], x: PyTree) -> Hashable | None:
        """What the costs depend on besides the stages themselves; None if nothing is differentiated."""
        ...
