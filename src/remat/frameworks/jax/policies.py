"""Policies: what a segment keeps all the same, by JAX's own functions or by their names."""

import inspect
from typing import Any

import jax

from remat.errors import ProblemError

__all__ = ["policy_of"]


def policy_of(given: Any) -> Any:
    """The policy that is asked for, by itself or by its name."""
    if given is None:
        return None
    there = vars(jax.checkpoint_policies).items()
    known = {name: each for name, each in there if callable(each) and not name.startswith("_")}
    policies = {name: each for name, each in known.items() if _is_policy(each)}
    makers = known.keys() - policies.keys()
    for name in makers:
        if given == name or given is known[name]:
            raise ProblemError(
                f"policy is {name}, which makes policies and is none: give jax.checkpoint_policies.{name}(...)"
            )
    if not isinstance(given, str):
        return given
    if given not in policies:
        raise ProblemError(
            f"policy {given!r:.60} is none of JAX's: these are {', '.join(sorted(policies))}; or give a function, such "
            'as jax.checkpoint_policies.save_only_these_names("a")'
        )
    return policies[given]


def _is_policy(function: Any) -> bool:
    """Whether it takes whatever an operation is given, as policies do; what makes policies takes its own arguments."""
    kinds = {each.kind for each in inspect.signature(function).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds
