"""A model that is run with its blocks cut out of the graph: what is measured is one block, or what lies around them.

Blocks run without a graph, and the model goes on with tensors that have their numbers and a graph that ends there. So
no more is live than the model needs around its blocks.
"""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from remat.execute.state_replay import preserved_state
from remat.frameworks.torch.block_ranges import versions_of
from remat.frameworks.torch.environment import reached, replayable_states
from remat.frameworks.torch.graph import version
from remat.frameworks.torch.measure_chain import cotangent_loss
from remat.frameworks.torch.replayable_state import global_generators
from remat.frameworks.torch.saved_tensors import made_again
from remat.pytree import flatten

__all__ = ["BlockCall", "CutBlocks"]


class CutBlocks:
    """Calls of blocks that are cut out of the graph."""

    def __init__(self, token: str) -> None:
        self.model = token
        self.outputs = 0  # bytes of what the model returns and its graph does not hold
        self.seconds: list[float] = []  # before, between and after the calls; then those of the backward
        self._device: torch.device | None = None
        self._first: Any = None
        self._began = 0.0

    def level(self) -> int:
        """Bytes that are live now, if they are counted."""
        return 0

    def begin(self, device: torch.device | None) -> None:
        """The model is about to run."""
        self._device = device
        self._began = perf_counter()

    def call(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a block returns, as leaves."""
        call = BlockCall(block, fn, args, kwargs)
        if self._first is None:
            self._first = [leaf for leaf in call.leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        self._time()
        self.before(call)
        with torch.no_grad():
            out = fn(*args, **kwargs)
        wants = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in call.leaves) or _trains(fn)
        values, tree = flatten(out)
        for place, value in enumerate(values):
            if isinstance(value, Tensor) and call.given.get(id(value)) != version(value):
                is_active = wants and (value.is_floating_point() or value.is_complex())
                # No leaf: a graph holds its leaves, and would hold what a block made for as long as it is there.
                values[place] = made_again(value) if is_active else value.detach()
        del out
        result = tree.unflatten(values)
        # A model that leaves blocks out at random is to draw what it would draw without the runs that measure.
        with preserved_state(global_generators()):
            self.after(call, result)
        self._finish()
        self._began = perf_counter()
        return result

    def before(self, call: "BlockCall") -> None:
        """A block is about to run."""

    def after(self, call: "BlockCall", out: Any) -> None:
        """A block has returned this."""

    def end_forward(self, results: Any) -> None:
        """The model has returned, and the loss is there."""
        self._time()

    def end_backward(self) -> None:
        """What comes after the last block has been pulled back."""
        self._time()

    def pull_back_first(self) -> None:
        """Pull back what comes before the first block."""
        first, self._first = self._first, None
        value = cotangent_loss([leaf for leaf in first or [] if leaf.requires_grad])
        del first
        # A loss that depends on it directly has freed it, and it was counted there.
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
    """One call of a block: its arguments, and their versions before it."""

    def __init__(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.block, self.fn, self.arguments = block, fn, (args, kwargs)
        self.leaves, self._tree = flatten(self.arguments)
        self.given = versions_of(self.leaves)

    @property
    def writes(self) -> bool:
        """Whether it has written into its arguments."""
        return versions_of(self.leaves) != self.given

    def of_arguments(self, fn: Callable[..., Any] | None = None) -> Callable[[Any], Any]:
        """The block, or `fn` for it, as a function of (args, kwargs) that can be called often.

        Objects among these, as caches are, are put back.
        """
        block = self.fn if fn is None else fn
        plain = all(isinstance(each, Tensor | str | int | float | None) for each in self.leaves)
        states = [] if plain else replayable_states(reached(arguments=self.leaves))

        def run(x: Any) -> Any:
            with preserved_state(states) if states else nullcontext():
                return block(*x[0], **x[1])

        return run

    def after(self, before: Callable[[Any], Any], taken: dict[int, int]) -> Callable[[Any], Any]:
        """The function of two blocks: what the second one takes from the first is at these places of its output.

        What it takes from elsewhere has no graph here, which the first backward would free.
        """

        def run(x: Any) -> Any:
            made = flatten(before(x))[0]
            leaves = [made[taken[id(leaf)]] if id(leaf) in taken else _without_graph(leaf) for leaf in self.leaves]
            args, kwargs = self._tree.unflatten(leaves)
            return self.fn(*args, **kwargs)

        return run


def _without_graph(leaf: Any) -> Any:
    has_graph = isinstance(leaf, Tensor) and leaf.grad_fn is not None
    return leaf.detach().requires_grad_() if has_graph else leaf


def _trains(fn: Callable[..., Any]) -> bool:
    """Whether a block has parameters that want gradients."""
    module = getattr(fn, "__self__", None)
    return not isinstance(module, nn.Module) or any(parameter.requires_grad for parameter in module.parameters())
