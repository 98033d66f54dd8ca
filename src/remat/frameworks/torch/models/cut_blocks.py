"""Runs of a model with its blocks cut out of the graph, to measure one block, or the code around blocks.

Blocks run without a graph where they can, and the model continues with tensors that have their values and start a new
graph. So only what the model needs around its blocks is live.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.execute.state_replay import exchanged, preserved_state
from remat.frameworks.torch.internals.graph import version
from remat.frameworks.torch.internals.storage import is_dense, storage_id
from remat.frameworks.torch.models.block_ranges import versions_of
from remat.frameworks.torch.models.in_place_stages import copied
from remat.frameworks.torch.models.measure_chain import cotangent_loss
from remat.frameworks.torch.models.runs_without_graph import without_graph_if_possible
from remat.frameworks.torch.replay.environment import reached, replayable_states
from remat.frameworks.torch.replay.replayable_state import global_generators
from remat.frameworks.torch.segments.saved_tensors import made_again
from remat.pytree import flatten

__all__ = ["BlockCall", "CutBlocks"]

DRAWS = 16  # for a block that left itself out: so often is it run to find a draw in which it does not


class CutBlocks:
    """Handles calls of blocks by cutting them out of the graph."""

    def __init__(self, token: str) -> None:
        self.model = token
        self.outputs = 0  # bytes of the model's outputs that its graph does not hold
        self.seconds: list[float] = []  # before, between and after the calls; then those of the backward
        self._device: torch.device | None = None
        self._first: Any = None
        self._began = 0.0

    def level(self) -> int:
        """The bytes that are live now; 0 if they are not counted."""
        return 0

    def note_outputs(self, level: int) -> None:
        """Called when the model's outputs are released; `level` is what was live before."""
        self.outputs = level - self.level()

    def begin(self, device: torch.device | None) -> None:
        """Called before the model runs."""
        self._device = device
        self._began = perf_counter()

    def call(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a block without a graph; return its output as the start of a new graph."""
        call = BlockCall(block, fn, args, kwargs)
        if self._first is None:
            self._first = [leaf for leaf in call.leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        self._time()
        self.before(call)
        out = without_graph_if_possible(lambda: fn(*args, **kwargs))
        wants = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in call.leaves) or _trains(fn)
        values, tree = flatten(out)
        for place, value in enumerate(values):
            if isinstance(value, Tensor) and call.given.get(id(value)) != version(value):
                is_active = wants and (value.is_floating_point() or value.is_complex())
                # Not as a leaf: the graph would hold the leaf, and so the block's output, as long as it lives.
                values[place] = made_again(value) if is_active else value.detach()
        del out
        result = tree.unflatten(values)
        # Measuring must not change the random numbers by which a model leaves out blocks, nor add to what a model
        # collects through hooks, such as the logits of routers.
        with preserved_state([*global_generators(), *_collected()]):
            self.after(call, result)
        self._finish()
        self._began = perf_counter()
        return result

    def before(self, call: "BlockCall") -> None:
        """Called before a block runs."""

    def after(self, call: "BlockCall", out: Any) -> None:
        """Called when a block has returned."""

    def end_forward(self, results: Any) -> None:
        """Called when the model has returned and the loss is computed."""
        self._time()

    def end_backward(self) -> None:
        """Called when the code after the last block has been pulled back."""
        self._time()

    def pull_back_first(self) -> None:
        """Pull back the code before the first block."""
        first, self._first = self._first, None
        value = cotangent_loss([leaf for leaf in first or [] if leaf.requires_grad])
        del first
        # If the loss depends on it directly, its graph is already freed, and was counted there.
        with suppress(RuntimeError):
            if value is not None:
                torch.autograd.backward(value)
        self._time()

    def _time(self) -> None:
        self._finish()
        now = perf_counter()
        self.seconds.append(now - self._began)
        self._began = now

    def _finish(self) -> None:
        """Wait for the device."""
        if self._device is not None:
            torch.cuda.synchronize(self._device)


class BlockCall:
    """One call of a block: its arguments, their versions, and the generators, as they were before it.

    A block may change containers among its arguments, so each run gets new ones.
    """

    def __init__(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.block, self.fn, self._containers = block, fn, (args, kwargs)
        self.leaves, self._tree = flatten(self._containers)
        self.given = versions_of(self.leaves)
        self._objects: list[tuple[ReplayableState, Any]] = []
        self._draws: list[tuple[ReplayableState, Any]] = []
        self._versions: list[Any] = []

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, positional and named, in new containers."""
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = self._tree.unflatten(list(self.leaves))
        return arguments

    @property
    def writes(self) -> bool:
        """Whether the block has written into its arguments."""
        return versions_of(self.leaves) != self.given

    def note_objects(self) -> None:
        """Take snapshots of the objects among the arguments, such as caches, before the block runs."""
        if not all(isinstance(each, Tensor | str | int | float | None) for each in self.leaves):
            states = replayable_states(reached(arguments=self.leaves))
            self._objects = [(state, state.get()) for state in states]

    def note_generators(self) -> None:
        """Take snapshots of the global generators before the block runs."""
        self._draws = _snapshots()
        self._versions = [state.version() for state, _ in self._draws]

    def end(self) -> None:
        """Called when the block has returned: only generators from which it has drawn are set back for further runs."""
        before = zip(self._draws, self._versions, strict=True)
        self._draws = [(state, snapshot) for (state, snapshot), version in before if state.version() != version]

    def makes_nothing(self, out: Any, agreed: Callable[[bool], bool]) -> bool:
        """Whether all that the block returns is in the memory of its arguments, as all processes must agree.

        A block that draws random numbers is run again, on copies, until it makes something with others; its further
        runs then draw these.
        """
        nothing = agreed(not self.writes and _is_within(out, self.leaves))
        for _ in range(DRAWS if nothing and self._draws else 0):
            draws, (args, kwargs) = _snapshots(), copied(self.arguments)
            with self.objects_as_before():
                out = without_graph_if_possible(partial(self.fn, *args, **kwargs))
            if not agreed(_is_within(out, flatten((args, kwargs))[0])):
                self._draws = draws
                return False
        return nothing

    def of_arguments(self, fn: Callable[..., Any] | None = None) -> Callable[[Any], Any]:
        """The block, or `fn` in its place, as a function of (args, kwargs) that can be called often.

        Each call finds the objects among these, such as caches, and the generators as the block found them.
        """
        block = self.fn if fn is None else fn
        leaves, _ = flatten(self._containers)
        are_changed = [*map(id, leaves)] != [*map(id, self.leaves)]

        def run(x: Any) -> Any:
            if are_changed:
                values, tree = flatten(x)
                x = tree.unflatten(values)
            for state, snapshot in self._draws:
                state.set(snapshot)
            with self.objects_as_before():
                return block(*x[0], **x[1])

        return run

    def objects_as_before(self) -> AbstractContextManager[None]:
        """A context that starts from the arguments' objects as before the block ran, and restores the current ones."""
        return exchanged(self._objects) if self._objects else nullcontext()

    def after(self, before: Callable[[Any], Any], taken: dict[int, int]) -> Callable[[Any], Any]:
        """This block after `before`, as one function; `taken` are the places in the output of `before` that it takes.

        Tensors from elsewhere are detached, since the first backward would free their graph.
        """

        def run(x: Any) -> Any:
            made = flatten(before(x))[0]
            leaves = [made[taken[id(leaf)]] if id(leaf) in taken else _without_graph(leaf) for leaf in self.leaves]
            args, kwargs = self._tree.unflatten(leaves)
            return self.fn(*args, **kwargs)

        return run


def _is_within(out: Any, leaves: Sequence[Any]) -> bool:
    """Whether all tensors that a block returned are in the memory of its arguments."""
    memory = {storage_id(leaf) for leaf in leaves if isinstance(leaf, Tensor) and is_dense(leaf)}
    tensors = [leaf for leaf in flatten(out)[0] if isinstance(leaf, Tensor)]
    return bool(tensors) and all(is_dense(each) and storage_id(each) in memory for each in tensors)


def _snapshots() -> list[tuple[ReplayableState, Any]]:
    """The global generators with their states."""
    return [(state, state.get()) for state in (*global_rng_states(), *global_generators())]


def _collected() -> list[ReplayableState]:
    """The containers in context variables while a model runs, which a block can reach but no search finds."""
    containers = [value for value in copy_context().values() if isinstance(value, dict | list | set | deque)]
    return replayable_states(reached(arguments=containers)) if containers else []


def _without_graph(leaf: Any) -> Any:
    has_graph = isinstance(leaf, Tensor) and leaf.grad_fn is not None
    return leaf.detach().requires_grad_() if has_graph else leaf


def _trains(fn: Callable[..., Any]) -> bool:
    """Whether a block may have parameters that require gradients."""
    module = getattr(fn, "__self__", None)
    return not isinstance(module, nn.Module) or any(parameter.requires_grad for parameter in module.parameters())
