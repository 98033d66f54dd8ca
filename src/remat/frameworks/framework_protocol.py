"""What a framework's package must offer: the protocol that the registry and the interface rely on."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from remat.loops.request import LoopRequest
from remat.profiling import CallRecord
from remat.segments import CheckpointOptions

__all__ = ["Framework"]


class Framework(Protocol):
    """One framework; the module `remat.frameworks.<name>` is one, since modules can satisfy protocols."""

    NAME: str  # in profiles and messages to developers
    TITLE: str  # in messages to users
    MIXES: bool  # whether its arrays may be arguments next to another framework's: one of the two then differentiates
    CONVERSION: str  # a call that makes its arrays from another framework's, or nothing
    ARRAY_TYPES: tuple[type, ...]  # all that is an instance of these is its own
    DECIDES_LOOPS: tuple[type, ...]  # a step that captures one of these makes a loop over plain numbers its own
    DECIDES_SEGMENTS: tuple[type, ...]  # the same for functions that are checkpointed
    HAS_POLICIES: bool  # whether `policy=` says what a segment keeps

    def owns(self, leaf: Any, /) -> bool:
        """Whether a leaf that is none of the ARRAY_TYPES can only be this framework's."""
        ...

    def is_module(self, fn: Any, /) -> bool:
        """Whether this is a module, with parameters of its own, and not a plain function."""
        ...

    def is_tracing(self) -> bool:
        """Whether the calling code is being traced, so that plain numbers belong to the trace."""
        ...

    def free_bytes(self, *values: Any) -> int | None:
        """Bytes that are free on the device of these values; None if that is the host, or is not known."""
        ...

    def scan(
        self,
        step: Callable[[Any, Any], Any],
        init: Any,
        xs: Any,
        length: int | None,
        request: LoopRequest,
        vjp: Callable[..., Any] | None = None,
        rows: dict[int, int] | None = None,
        driven: bool = False,
    ) -> tuple[Any, Any]:
        """The last carry and the stacked outputs of all steps, or of those that `rows` maps to a row."""
        ...

    def while_loop(
        self,
        cond: Callable[[Any], Any],
        body: Callable[[Any], Any],
        init: Any,
        max_steps: int | None,
        request: LoopRequest,
    ) -> Any:
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

    def unpack(self, value: Any, /) -> Any:
        """The framework's own containers as plain ones; anything else as it is."""
        ...

    def flatten(self, value: Any, /) -> tuple[list[Any], Any]:
        """The leaves of a value, and its structure, which has `unflatten(leaves)` and can be compared."""
        ...

    def stack(self, rows: Sequence[Any], /) -> Any:
        """One array of several, along a new first axis."""
        ...

    def prepend(self, first: Any, rows: Any, /) -> Any:
        """An array with one more row, the first."""
        ...
