"""`replace_loops` on JAX: JAX's loops and checkpoints are replaced by ours while a function is traced.

In: a budget. Out: a context in which `jax.lax.scan`, `fori_loop`, `while_loop` and `jax.checkpoint`, called through
their modules by any code, run as `remat.scan`, `remat.while_loop` and `remat.drop`; and a list of the loops that were
replaced. What it misses: functions that were jitted and traced earlier, and references that were taken earlier.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from remat.frameworks.jax.avals import Tracer
from remat.frameworks.jax.loops.scan import scan, while_loop
from remat.frameworks.jax.segments.checkpoint import checkpoint
from remat.loops.exchange import Exchange
from remat.loops.request import LoopRequest
from remat.pytree import PyTree
from remat.segments import CheckpointOptions, display_name

__all__ = ["LoopsMet", "replace_loops"]


class LoopMet(NamedTuple):
    """A loop or a checkpoint that was replaced."""

    kind: str
    name: str
    steps: int | None  # None if unknown when it is traced

    def __str__(self) -> str:
        length = (
            "" if self.kind == "checkpoint" else ", length unknown" if self.steps is None else f", {self.steps} steps"
        )
        return f"{self.kind} of {self.name}{length}"


@dataclass
class LoopsMet:
    """The loops replaced in a `replace_loops` context, in order; `new_request` makes the request for each of them."""

    new_request: Callable[[], LoopRequest]
    budget: str
    loops: list[LoopMet] = field(default_factory=list)

    def meet(self, kind: str, function: Any, steps: int | None = None) -> LoopRequest:
        """Note a loop and return its request."""
        self.loops.append(LoopMet(kind, display_name(function), steps))
        return self.new_request()

    def explain(self) -> str:
        """What was replaced, one line for each, in the order of tracing."""
        if not self.loops:
            return (
                "no loop was met: a jitted function that was traced before stays as it was, and so does what a module "
                "took by `from jax.lax import scan`"
            )
        lines = [f"{len(self.loops)} exchanged, each with {self.budget}:", *(f"  {loop}" for loop in self.loops)]
        return "\n".join(lines)


_EXCHANGE: Exchange[LoopsMet] = Exchange("remat_replace_loops")


@contextmanager
def replace_loops(new_request: Callable[[], LoopRequest], budget: str) -> Iterator[LoopsMet]:
    """Within the context, JAX's loops and checkpoints that this thread traces are ours."""
    places: dict[tuple[ModuleType, str], Callable[..., Any]] = {
        (lax, "scan"): _scan,
        (lax, "fori_loop"): _fori_loop,
        (lax, "while_loop"): _while_loop,
        (jax, "checkpoint"): _checkpoint,
        (jax, "remat"): _checkpoint,
    }
    with _EXCHANGE.using(LoopsMet(new_request, budget), places) as met:
        yield met


def _scan(
    met: LoopsMet,
    original: Callable[..., Any],
    f: Callable[..., Any],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> PyTree:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(xs)]
    if not callable(f) or not all(shapes) or isinstance(unroll, Tracer):
        return original(f, init, xs, length, unroll=unroll)  # JAX says what is wrong
    steps = length if length is not None or not shapes else shapes[0][0]
    return scan(f, init, xs, length, met.meet("scan", f, steps), reverse=reverse, unroll=unroll)


def _while_loop(
    met: LoopsMet,
    original: Callable[..., Any],
    cond_fun: Callable[..., Any],
    body_fun: Callable[..., Any],
    init_val: PyTree,
) -> PyTree:
    if not callable(cond_fun) or not callable(body_fun):
        return original(cond_fun, body_fun, init_val)  # JAX says what is wrong
    return while_loop(cond_fun, body_fun, init_val, None, met.meet("while_loop", body_fun))


def _fori_loop(
    met: LoopsMet,
    original: Callable[..., Any],
    lower: Any,
    upper: Any,
    body_fun: Callable[..., Any],
    init_val: PyTree,
    *,
    unroll: int | bool | None = None,
) -> PyTree:
    """Run as a scan if the limits are Python numbers, else as a while_loop."""
    limits = _of_one_dtype(lower, upper)
    known = all(isinstance(limit, int | np.integer) for limit in (lower, upper))
    unrolled = unroll not in (None, False, 1)
    if not callable(body_fun) or limits is None or (unrolled and not known and _any_traced(lower, upper)):
        return original(lower, upper, body_fun, init_val, unroll=unroll)  # JAX says what is wrong
    if known and int(upper) <= int(lower):
        return original(lower, upper, body_fun, init_val)

    @wraps(body_fun)
    def body(carry: PyTree) -> PyTree:
        i, value = carry
        return i + 1, body_fun(i, value)

    if known:  # then the loop counter is a Python number, as in JAX
        steps = int(upper) - int(lower)
        request = met.meet("fori_loop", body_fun, steps)
        step = wraps(body_fun)(lambda carry, _: (body(carry), None))
        return scan(step, (int(lower), init_val), None, steps, request, unroll=unroll or 1)[0][1]
    request, (first, end) = met.meet("fori_loop", body_fun), limits
    return while_loop(lambda carry: carry[0] < end, body, (first, init_val), None, request)[1]


def _any_traced(*values: Any) -> bool:
    return any(isinstance(value, Tracer) for value in values)


def _of_one_dtype(lower: Any, upper: Any) -> tuple[Any, Any] | None:
    """The limits with one dtype, where a weakly typed one takes the other's; None if the dtypes differ."""
    dtypes = [jnp.result_type(limit) for limit in (lower, upper)]
    if dtypes[0] == dtypes[1]:
        return lower, upper
    strong = [dtype for dtype, limit in zip(dtypes, (lower, upper), strict=True) if not jax.typeof(limit).weak_type]
    return (jnp.asarray(lower, strong[0]), jnp.asarray(upper, strong[0])) if len(strong) == 1 else None


def _checkpoint(met: LoopsMet, original: Callable[..., Any], fun: Any = None, **options: Any) -> Any:
    if fun is None:  # used as a decorator with options
        return lambda fun: _checkpoint(met, original, fun, **options)
    if set(options) - {"policy"}:  # static arguments and the like are left to JAX
        return original(fun, **options)
    met.meet("checkpoint", fun)

    @wraps(fun)
    def dropped(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(fun, args, kwargs, CheckpointOptions(policy=options.get("policy")))

    return dropped
