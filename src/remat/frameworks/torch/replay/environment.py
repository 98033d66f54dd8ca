"""The environment of a recomputation, so that a function that is recomputed or measured leaves no trace.

The rule: while the function runs again, everything that it reaches (tensor_reach.py) is as it was at the call;
afterwards, however the run ends, it is as it was before the run. This covers random generators; grad mode, autocast and
default dtype; the contents of `__dict__`s, dicts, lists, sets and deques, hence the parameters, buffers, children,
hooks, training flags and attributes of modules (python_state.py); the methods and attributes of the user's classes
(class_attributes.py); variables of enclosing functions, and globals, except those in which the function counts its
calls; and the state of tensors (tensor_state.py). Only what differs is touched, so that in the usual case, where
nothing has changed since, other threads notice nothing.

Tensors with a graph are not kept alive: the caller saves them, and passes them back (`made`).

What it can miss is described in reach.py, python_state.py and tensor_state.py. The cost: about 5 us for each module.

For a loop or a measurement, `replayable_states(TorchReach)` offers the same as replayable states (rng_state.py).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from remat.closures.placeholders import filled_in, with_placeholders
from remat.closures.references import UNSET, ItemRef, Reference, place_of
from remat.execute.array_state import small_arrays
from remat.execute.python_state import Contents, PythonState
from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import SegmentReplay
from remat.frameworks.torch.internals.autocast import AutocastState
from remat.frameworks.torch.internals.batched_backward import outside_batched_backward
from remat.frameworks.torch.internals.fsdp import fsdp1_calls_refused, gathered_parameters
from remat.frameworks.torch.internals.graph import backward_hooks, set_backward_hooks
from remat.frameworks.torch.internals.modules import WEIGHTS_CACHE, cached_weights
from remat.frameworks.torch.replay.class_attributes import ClassAttributes
from remat.frameworks.torch.replay.known_reach import KnownReach, ReachCache, reached
from remat.frameworks.torch.replay.replayable_state import generator_state, global_generators
from remat.frameworks.torch.replay.tensor_reach import TorchReach, is_made
from remat.frameworks.torch.replay.tensor_state import Storages, TensorStates
from remat.frameworks.torch.replay.tensor_value import COPIED, LargeTensor, TensorValue, is_plain
from remat.frameworks.torch.replay.watch import PLAIN

__all__ = ["Environment", "reached", "replayable_states"]


def replayable_states(reach: TorchReach, contents: PythonState | None = None) -> list[ReplayableState]:
    """Everything that a function reaches, and the global generators, as replayable states for `StateReplay` and others.

    Tensors are included if the function may write into them, that is, if they require no gradient: statistics of
    modules in training and small tensors with their numbers, others only with their version. `contents` are those of
    the containers, if already available. Gathered parameters are not included: what FSDP frees has no numbers to copy.
    """
    statistics, gathered = {id(tensor) for tensor in reach.statistics}, gathered_parameters(reach.modules)
    values: list[ReplayableState] = []
    for tensor in reach.tensors:
        if not tensor.requires_grad and is_plain(tensor) and id(tensor) not in gathered:
            is_statistic = id(tensor) in statistics
            is_copied = is_statistic or tensor.nbytes <= COPIED
            values.append(TensorValue(tensor, is_statistic=is_statistic) if is_copied else LargeTensor(tensor))
    contents = contents or PythonState([*reach.containers, *reach.registries])
    generators = [*global_generators(), *reach.generators, *map(generator_state, reach.torch_generators)]
    return [*generators, *values, *small_arrays(reach.arrays), contents]


class Environment:
    """What a function reaches, as it was when this object was created, right before the first run.

    `save` is called for each tensor with a graph, and returns the index under which `restored` gets it back. A `cache`
    remembers what the function reached at an earlier call.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: Iterable[Any],
        save: Callable[[Tensor], int],
        cache: ReachCache | None = None,
    ) -> None:
        arguments = (*arguments, *cached_weights())
        found = reached(fn, arguments=arguments) if cache is None else cache.reach_of(fn, arguments)
        if isinstance(found, KnownReach):
            reach, contents, self._classes = found.reach, found.contents, found.classes
        else:
            reach, contents, self._classes = found, None, ClassAttributes(found.seen())
        self.lazy = reach.lazy
        # The context of the first run.
        self.calls_refused = fsdp1_calls_refused() if reach.fsdp1 else nullcontext()
        self._modes = AutocastState()
        generators = [*global_generators(_cuda_devices(reach)), *map(generator_state, reach.torch_generators)]
        self._replay = SegmentReplay([*generators, *reach.generators, *small_arrays(reach.arrays)])
        self.tensors = TensorStates(reach.tensors, reach.statistics, compiled=reach.compiled)
        self._python = _PythonContents(reach, save, contents)

    def container_ids(self) -> set[int]:
        """The ids of the containers that the function and its arguments reach, except dicts and lists of arguments."""
        return {id(container) for container in self._python.containers()}

    def finish_forward(self) -> None:
        """Drop the copies of what the first run has not changed; called after that run."""
        self._replay.forget_unused()
        self.tensors.finish_forward()

    @contextmanager
    def restored(self, name: str, made: Sequence[Tensor], copied: Collection[int] = ()) -> Iterator[Storages]:
        """A context in which everything is as it was at the call, and after which it is as it was before the context.

        `made` are the saved tensors; those with the indices `copied` take the places of the originals. Yields the
        memory that is written into. Raises a StepError, with the function's name, if the function has written other
        numbers than in the first run into a tensor whose numbers at the call were not copied.
        """
        # Tensors come last: they are those in the restored contents.
        contents, tensors = self._python.restored(made, copied), self.tensors.restored(name, made)
        modes, classes = self._modes.active(grad=True), self._classes.restored()
        with self._replay.rewound(), outside_batched_backward(), modes, classes, contents, tensors as storages:
            yield storages

    def rewind(self, made: Sequence[Tensor]) -> None:
        """Restore everything to what it was at the call, after a failed first run."""
        self._replay.rewind()
        self._classes.rewind()
        self._python.rewind(made)
        self.tensors.rewind()


class _PythonContents:
    """The contents of containers and the values of variables, without the tensors that have a graph."""

    def __init__(self, reach: TorchReach, save: Callable[[Tensor], int], contents: Contents | None = None) -> None:
        self._registries = {id(registry) for registry in reach.registries}
        contents = contents or Contents.of([*reach.containers, *reach.registries])
        # The search does not enter libraries, but this cache affects what a segment computes.
        self._variables = [*reach.variables, *((place, place.get()) for place in WEIGHTS_CACHE)]
        # Weak references: a segment must not keep alive what an outer segment drops.
        self._made = [ref(tensor) for tensor, _ in reach.made]
        self._open: list[tuple[Any, Any, list[Any]]] = []  # containers, items, keys of placeholders
        if reach.made:
            contents = self._without_made(contents, reach, save)
        self._contents = contents

    def _without_made(self, contents: Contents, reach: TorchReach, save: Callable[[Tensor], int]) -> Contents:
        """The contents of containers without graph tensors; the others are set apart, with placeholders for these."""

        def index_of(value: Any) -> int | None:
            return save(value) if isinstance(value, Tensor) and is_made(value) else None

        keys: dict[int, list[Any]] = {}
        for _, (owner, key) in reach.made:
            # A variable that is assigned to counts as a container with one item, its value.
            variable = reach.rebound.get(place_of(owner)) if isinstance(owner, Reference) else None
            if variable is not None:
                keys[id(variable)] = [0]
            elif isinstance(owner, dict | list | deque) and key not in keys.setdefault(id(owner), []):
                keys[id(owner)].append(key)
        for container, items in contents.pairs:
            if id(container) in keys and isinstance(items, dict | list):
                for key in keys[id(container)]:
                    items[key] = with_placeholders(items[key], index_of)
                self._open.append((container, items, keys[id(container)]))
        self._variables = [(place, with_placeholders(value, index_of)) for place, value in self._variables]
        return Contents([pair for pair in contents.pairs if id(pair[0]) not in keys], contents.empty)

    def containers(self) -> list[Any]:
        """The containers."""
        return [*self._contents.containers(), *(container for container, _, _ in self._open)]

    def rewind(self, made: Sequence[Tensor]) -> None:
        """Restore contents and variables to what they were."""
        self._exchangeable(self._at_call(made).changed()).restore()
        for place, _, value in self._rebound(made):
            place.put(value)

    @contextmanager
    def restored(self, made: Sequence[Tensor], copied: Collection[int]) -> Iterator[None]:
        """A context in which contents and variables are as they were; only what differs is replaced."""
        at_call, rebound = self._at_call(made, copied), self._rebound(made, copied)
        differing = self._exchangeable(at_call.changed())
        # What the run itself changes is restored too, in addition to what differs before it starts.
        afterwards = _with_present(at_call, differing) if differing else at_call
        # Hooks that the function registers on an outside tensor are meant for one run, and those of the first are
        # already there.
        hooks = [(tensor, backward_hooks(tensor)) for reference in self._made if (tensor := reference()) is not None]
        try:
            differing.restore()
            for place, _, value in rebound:
                place.put(value)
            yield
        finally:
            for tensor, registered in hooks:
                set_backward_hooks(tensor, registered)
            for place, now, _ in rebound:
                place.put(now)
            self._exchangeable(afterwards.changed()).restore()

    def _at_call(self, made: Sequence[Tensor], copied: Collection[int] = ()) -> Contents:
        """The contents with placeholders replaced by tensors, the originals where they are still in place."""
        filled: list[tuple[Any, Any]] = []
        for container, items, keys in self._open:
            contents = items.copy()
            for key in keys:
                contents[key] = filled_in(items[key], ItemRef(container, key).get(), made, copied)
            filled.append((container, contents))
        return Contents([*self._contents.pairs, *filled], self._contents.empty) if filled else self._contents

    def _rebound(self, made: Sequence[Tensor], copied: Collection[int] = ()) -> list[tuple[Reference, Any, Any]]:
        """The variables with another value now: place, current value, and value at the call."""
        found = [(place, place.get(), value) for place, value in self._variables]
        wanted = [(place, now, filled_in(value, now, made, copied)) for place, now, value in found]
        return [(place, now, value) for place, now, value in wanted if value is not now]

    def _exchangeable(self, contents: Contents) -> Contents:
        """The contents, except that parameters of types other than PyTorch's own stay as they are now.

        Sharded parameters, for example, are replaced, and put back, by the library that created them.
        """
        if not self._registries or not contents:
            return contents
        pairs = [(c, _plain_items(c, items) if id(c) in self._registries else items) for c, items in contents.pairs]
        filled = [(c, _plain_items(c, {})) for c in contents.empty if id(c) in self._registries]
        return Contents([*pairs, *filled], [c for c in contents.empty if id(c) not in self._registries])


def _with_present(contents: Contents, differing: Contents) -> Contents:
    """The contents, with those containers that differ replaced by their present contents."""
    containers = differing.containers()
    changed, present = {id(container) for container in containers}, Contents.of(containers)
    return Contents(
        [*present.pairs, *(pair for pair in contents.pairs if id(pair[0]) not in changed)],
        [*present.empty, *(container for container in contents.empty if id(container) not in changed)],
    )


def _plain_items(registry: Any, items: Any) -> dict[str, Any]:
    then, found = dict(items), {}
    for name in dict.fromkeys((*then, *registry)):
        value, now = then.get(name, UNSET), registry.get(name, UNSET)
        is_plain_exchange = all(type(each) in _EXCHANGEABLE or each is UNSET for each in (value, now))
        found[name] = value if is_plain_exchange else now
    return {name: value for name, value in found.items() if value is not UNSET}


_EXCHANGEABLE = (*PLAIN, type(None))


def _cuda_devices(reach: TorchReach) -> list[int]:
    """The CUDA devices that a function may use: those of its tensors, and the current one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    # Include the current device, on which the function may create tensors without reaching any.
    tensors = [*reach.tensors, *(tensor for tensor, _ in reach.made)]
    return sorted({tensor.device.index for tensor in tensors if tensor.is_cuda} | {torch.cuda.current_device()})
