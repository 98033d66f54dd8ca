"""diffrax: `RematAdjoint`, an adjoint for `diffeqsolve` whose loop over steps is `remat.while_loop`.

In: a budget. Out: gradients of the numerical solution itself ("discretise, then optimise"), like those of
`RecursiveCheckpointAdjoint`, in both modes and to second order, with any number of steps.

diffrax uses equinox's loops, which wrap condition and body so that the members of a batch end together and buffers are
only written for members that continue. This module uses the same wrapping, and lets remat run the result.
`common_rewrite` and `_loop` are private to equinox and diffrax: without them this module cannot be imported.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import equinox.internal
import jax
from equinox.internal._loop.common import common_rewrite

from remat.errors import ProblemError, StepError
from remat.frameworks.jax.loops.scan import free_bytes, while_loop
from remat.loops.exchange import Exchange
from remat.loops.request import LoopRequest
from remat.profiling.profiler import recorded_call
from remat.pytree import PyTree

__all__ = ["RematAdjoint"]


class RematAdjoint(diffrax.AbstractAdjoint):
    """Backpropagation through the steps of a solver, with a number of kept states or a budget in bytes.

    Args:
        slots: How many states are kept.
        memory: The budget for the peak in bytes, or as text such as "64 MiB", instead of `slots`.

    Example:
        >>> import diffrax, jax, remat
        >>> def last(y0):
        ...     term = diffrax.ODETerm(lambda t, y, args: -y)
        ...     adjoint = remat.diffrax.RematAdjoint(slots=10)
        ...     return diffrax.diffeqsolve(term, diffrax.Bosh3(), 0.0, 1.0, 0.1, y0, adjoint=adjoint).ys[0]
        >>> print(f"{jax.grad(last)(1.0):.4f}")
        0.3679
    """

    slots: int | None = eqx.field(static=True, default=None)
    memory: int | str | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if (self.slots is None) == (self.memory is None):
            given = "neither is given" if self.slots is None else "both are given"
            raise ProblemError(f"RematAdjoint takes slots= or memory=, and {given}: for example RematAdjoint(slots=31)")

    def loop(
        self,
        *,
        throw: bool,
        passed_solver_state: bool,
        passed_controller_state: bool,
        **kwargs: Any,
    ) -> Any:
        """Run the solve; called by `diffeqsolve`."""
        _refuse_unsafe_paths(kwargs["terms"])
        outer = partial(_while_loop, slots=self.slots, memory=self.memory)
        # The loop over the stages of a step is equinox's, which only supports reverse mode: it is replaced by ours too.
        with _STAGES.using(True, {(equinox.internal, "while_loop"): _stage_loop}):
            return self._loop(inner_while_loop=_inner_while_loop, outer_while_loop=outer, **kwargs)


def _refuse_unsafe_paths(terms: PyTree) -> None:
    """Raise a StepError for Brownian motion whose numbers depend on the last bits of times.

    XLA compiles the first run of a step and its recomputation separately, and may round their times differently.
    """
    paths = jax.tree.leaves(terms, is_leaf=lambda part: isinstance(part, diffrax.UnsafeBrownianPath))
    if any(isinstance(path, diffrax.UnsafeBrownianPath) for path in paths):
        raise StepError(
            "RematAdjoint runs steps again, and UnsafeBrownianPath may draw other numbers then: its keys are made from "
            "the bits of times, which XLA may round differently. Give diffrax.VirtualBrownianTree instead, or "
            "adjoint=diffrax.ForwardMode(), which runs each step once"
        )


_STAGES: Exchange[bool] = Exchange("remat_diffrax_stages")


def _stage_loop(_: bool, original: Callable[..., Any], *args: Any, kind: str, **kwargs: Any) -> PyTree:
    if kind != "checkpointed" or kwargs.get("checkpoints") is None:
        return original(*args, kind=kind, **kwargs)
    kwargs.pop("base", None)
    return _inner_while_loop(*args, **kwargs)


def _while_loop(
    cond: Callable[[PyTree], Any],
    body: Callable[[PyTree], PyTree],
    init: PyTree,
    *,
    max_steps: int | None = None,
    buffers: Any = None,
    slots: int | None = None,
    memory: int | str | None = None,
) -> PyTree:
    """equinox's while loop, run by remat."""
    cond, body, init, buffers = common_rewrite(cond, body, init, max_steps, buffers, makes_false_steps=False)  # type: ignore[no-untyped-call]
    # equinox requires its users to write each place of a buffer once, and to read it only later.
    nowhere = jax.tree.map(lambda _: False, init)
    write_once = jax.tree.leaves(eqx.tree_at(buffers(None), nowhere, replace_fn=lambda _: True))
    request = LoopRequest.parse(memory, slots, None, "first", None, lambda: free_bytes(init))
    with recorded_call("while_loop", body) as call:
        request = request.for_call(body, call, "jax")
        return while_loop(cond, body, init, max_steps, request, tuple(write_once))[3]


def _inner_while_loop(*args: Any, checkpoints: int, **kwargs: Any) -> PyTree:
    return _while_loop(*args, slots=checkpoints, **kwargs)
