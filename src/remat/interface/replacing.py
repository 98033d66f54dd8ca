"""`replace_loops`: replace the JAX loops inside other libraries by remat's."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from remat.frameworks import load_framework
from remat.loops.request import LoopRequest
from remat.problem.memory import Capacity
from remat.units import to_count

__all__ = ["replace_loops"]


@contextmanager
def replace_loops(*, slots: int | None = None, memory: Capacity | float = None) -> Iterator[Any]:
    """Replace JAX loops traced inside the `with` block, in any library, by remat's loops, each with this budget.

    `jax.lax.scan`, `jax.lax.fori_loop`, `jax.lax.while_loop` and `jax.checkpoint` are replaced where they are called
    through their modules, and only in the current thread. Blocks nest, and errors undo the replacement too. Two things
    are not replaced: a jitted function that was traced earlier, and a name imported earlier (`from jax.lax import
    scan`).

    Args:
        slots: How many states each loop keeps.
        memory: The budget of each loop in bytes or as text, instead of `slots`.

    Yields:
        An object whose `explain()` lists the loops that were replaced.

    Raises:
        ProblemError: If neither or both budgets are given, or the budget keeps nothing.

    Example:
        >>> import jax, remat
        >>> def last(x):
        ...     return jax.lax.fori_loop(0, 100, lambda i, x: jax.numpy.sin(x), x)
        >>> with remat.replace_loops(slots=5) as loops:
        ...     slope = jax.grad(last)(1.0)
        >>> print(loops.explain())
        1 exchanged, each with slots=5:
          fori_loop of last.<locals>.<lambda>, 100 steps
    """

    def new_request() -> LoopRequest:
        return LoopRequest.parse(memory, slots, None, "never", None, lambda: framework.free_bytes())

    if slots is not None:
        to_count(slots, "slots", least=1)
    framework = load_framework("jax")
    new_request()  # refuse an invalid budget here, not in the first loop
    budget = f"memory={memory!r}" if slots is None else f"slots={slots}"
    # Imported by name, because JAX may not be installed.
    with import_module("remat.frameworks.jax.replacement").replace_loops(new_request, budget) as loops:
        yield loops
