"""Programs that make mutable arrays (`jax.new_ref`), rewritten as programs of values.

JAX rewrites them before it compiles a program, by a rule for each primitive; the table of rules is private.
"""

from collections.abc import Callable
from typing import Any

from jax._src.state import discharge

from remat.frameworks.jax.avals import Array, ClosedJaxpr, is_ref, jaxpr_as_fun

__all__ = ["register_discharge", "without_refs"]


def without_refs(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program, without the mutable arrays that it makes itself; unchanged if it makes none."""
    # `jax.checkpoint` ends in a KeyError if a mutable array starts with a constant and a traced value is written to it.
    makes_refs = any(type(effect).__name__ == "InternalMutableArrayEffect" for effect in program.effects)
    if not makes_refs or any(map(is_ref, (*program.jaxpr.constvars, *program.in_avals))):
        return program
    rewritten: ClosedJaxpr = discharge.discharge_state(program)
    return rewritten


def register_discharge(primitive: Any, program_of: Callable[..., ClosedJaxpr]) -> None:
    """Let JAX compile a primitive whose program makes mutable arrays."""

    def rule(context: Any, *args: Any, **params: Any) -> tuple[list[None], list[Array]]:
        # Before JAX 0.11.2 the avals of arguments and results came one after the other, and not as one context.
        values = args if hasattr(context, "in_avals") else args[1:]
        program = discharge.discharge_state(program_of(values, **params))
        return [None] * len(values), list(jaxpr_as_fun(program)(*values))  # no argument is a mutable array

    discharge.register_discharge_rule(primitive)(rule)
