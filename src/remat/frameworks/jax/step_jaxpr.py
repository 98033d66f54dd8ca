"""A user's step as a program of flat arrays: what it closes over becomes arguments, and its looks are checked.

In: a step, and what its carry and its inputs look like. Out: a `Step`, which runs as often as one likes without the
user's Python; and the carry, with the types that the step gives it.
"""

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.tree_util import keystr, tree_flatten, tree_flatten_with_path, tree_structure, tree_unflatten

from remat.errors import StepError
from remat.frameworks.jax.avals import Flags, aval_of, differentiable, vary_like
from remat.frameworks.jax.cache_key import cache_key, has_custom_rules
from remat.frameworks.jax.differentiable import CacheKeyed

__all__ = ["Step", "TracedStep", "depends_on", "names_of", "trace_condition", "trace_step"]


class Step(CacheKeyed):
    """A program (consts, carry, x) → (carry, y) of flat arrays."""

    def __init__(self, program: ClosedJaxpr, consts: int, carry: int) -> None:
        self.program, self.consts, self.carry = program, consts, carry
        self.outs = program.out_avals
        known = cache_key(program)
        self.key = None if known is None else (known, consts, carry)

    def __call__(self, consts: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The next carry and the output."""
        found = jaxpr_as_fun(self.program)(*consts, *carry, *x)
        return found[: self.carry], found[self.carry :]

    @property
    def has_custom_rules(self) -> bool:
        """Whether parts of it have derivatives of their own, by jax.custom_vjp or jax.custom_jvp."""
        return has_custom_rules(self.program)

    @property
    def avals(self) -> list[Any]:
        """What its arguments look like."""
        return list(self.program.in_avals)

    def closure_of_dependence(self, consts: Flags, carry: Flags, x: Flags) -> tuple[Flags, Flags]:
        """Which parts of the carry and of the output depend on flagged arguments, after any number of steps."""
        while True:
            found = depends_on(self.program.jaxpr, (*consts, *carry, *x))
            grown = tuple(a or b for a, b in zip(carry, found[: self.carry], strict=True))
            if grown == carry:
                return carry, found[self.carry :]
            carry = grown

    def flows(self, consts: Flags, carry: Flags, x: Flags) -> tuple[Flags, Flags]:
        """Which parts of the carry and of the output have tangents, if the flagged arguments have."""
        can = [differentiable(aval) for aval in self.outs]
        found = self.closure_of_dependence(consts, carry, x)
        return tuple(a and b for a, b in zip(found[0], can[: self.carry], strict=True)), tuple(
            a and b for a, b in zip(found[1], can[self.carry :], strict=True)
        )

    @classmethod
    def of(cls, function: Callable[..., Any], avals: Sequence[Any], consts: int, carry: int) -> "Step":
        """The step that a function of lists (consts, carry, x) → (carry, y) is."""

        def flat(*args: Any) -> list[Any]:
            after, y = function(args[:consts], args[consts : consts + carry], args[consts + carry :])
            return [*after, *y]

        return cls(jax.make_jaxpr(flat)(*avals), consts, carry)


class TracedStep:
    """A step with what it closed over, and the structures of what it takes and gives."""

    def __init__(self, step: Step, consts: list[Any], carry: list[Any], carry_tree: Any, y_tree: Any) -> None:
        self.step, self.consts, self.carry = step, consts, carry
        self.carry_tree, self.y_tree = carry_tree, y_tree


def trace_step(step: Callable[[Any, Any], Any], init: Any, x: Any) -> TracedStep:
    """The step as a program; `x` is what one input looks like. What is wrong with it raises a StepError."""
    leaves, tree = tree_flatten(init)
    names = names_of(init, "carry")
    carry = [_array(leaf, name.replace("carry", "init", 1)) for leaf, name in zip(leaves, names, strict=True)]
    x_looks = tree_flatten(x)[0]
    shown: dict[str, Any] = {}

    def traced(carry: Any, x: Any) -> list[Any]:
        after, y = _pair(step(carry, x), init)
        shown["y"] = tree_structure(y)
        if tree_structure(after) != tree:  # type: ignore[operator]
            raise StepError(_other_structure(init, after))
        return [*tree_flatten(after)[0], *tree_flatten(y)[0]]

    if hasattr(step, "__name__"):
        wraps(step)(traced)  # errors of JAX name the user's function and its arguments
    for _ in range(len(carry) + 1):
        avals = [aval_of(leaf) for leaf in carry]
        program = jax.make_jaxpr(traced)(tree_unflatten(tree, avals), x)
        promoted = _promoted(carry, program.out_avals[: len(carry)], names)
        if promoted is None:
            break
        carry = promoted
    consts = list(program.consts)

    def closed(consts: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        found = jaxpr_as_fun(ClosedJaxpr(program.jaxpr, list(consts)))(*carry, *x)
        after = [_as(value, aval) for value, aval in zip(found, avals, strict=False)]
        return after, found[len(avals) :]

    made = Step.of(closed, [*map(aval_of, consts), *avals, *x_looks], len(consts), len(carry))
    return TracedStep(made, consts, carry, tree, shown["y"])


def trace_condition(cond: Callable[[Any], Any], traced: TracedStep) -> tuple[Step, list[Any]]:
    """A condition on a carry as a program whose output is its answer, and what it closes over."""
    avals = [aval_of(leaf) for leaf in traced.carry]

    def flat(*carry: Any) -> Any:
        answer = tree_flatten(cond(tree_unflatten(traced.carry_tree, carry)))[0]
        if len(answer) != 1 or jnp.shape(answer[0]):
            what = f"an array of shape {jnp.shape(answer[0])}" if len(answer) == 1 else f"{len(answer)} values"
            raise StepError(f"cond must return one truth value, and returned {what}; jnp.all and jnp.any make one")
        return jnp.asarray(answer[0]).astype(bool)

    program = jax.make_jaxpr(flat)(*avals)
    consts = list(program.consts)

    def closed(consts: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return list(carry), jaxpr_as_fun(ClosedJaxpr(program.jaxpr, list(consts)))(*carry)

    return Step.of(closed, [*map(aval_of, consts), *avals], len(consts), len(avals)), consts


def names_of(value: Any, root: str) -> list[str]:
    """A name for each leaf, as one would write it in Python."""
    return [root + keystr(path) for path, _ in tree_flatten_with_path(value)[0]]


def _array(leaf: Any, name: str) -> Any:
    try:
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        advice = ""
        if is_dataclass(leaf):
            advice = ". Register it as a container of JAX, by jax.tree_util.register_dataclass"
        elif callable(leaf):
            advice = ". Let the step close over functions: of a module, arrays alone go into the carry"
        raise StepError(f"{name} is a {type(leaf).__name__}, and must be an array or a number{advice}") from error


def _pair(out: Any, init: Any) -> tuple[Any, Any]:
    tree: Any = tree_structure(init)
    alone = tree_structure(out) == tree
    if isinstance(out, tuple | list) and len(out) == 2 and (not alone or tree_structure(out[0]) == tree):
        return out[0], out[1]
    what = "None" if out is None else f"a {type(out).__name__}"
    what += f" of {len(out)}" if isinstance(out, tuple | list) else ""
    what = "the carry alone" if alone else what
    raise StepError(
        f"the step must return (carry, y), and returned {what}; without an output return (carry, None), with all parts "
        "of the carry in one"
    )


def _promoted(carry: list[Any], after: Sequence[Any], names: list[str]) -> list[Any] | None:
    """The carry with the types that the step gives numbers without a type of their own; None if nothing changes."""
    changed = list(carry)
    for k, (value, out, name) in enumerate(zip(carry, after, names, strict=True)):
        changed[k] = value = vary_like(value, out)
        aval = aval_of(value)
        if aval.shape == out.shape and (aval.dtype == out.dtype or _gives_way(out, aval)):
            if aval.weak_type and not getattr(out, "weak_type", False) and aval.dtype == out.dtype:
                changed[k] = lax.convert_element_type(value, aval.dtype)
            continue
        if aval.shape == out.shape and _gives_way(aval, out):
            changed[k] = jnp.asarray(value).astype(out.dtype)
            continue
        advice = (
            f"; write init with shape {tuple(out.shape)}, or keep the shape in the step"
            if aval.shape != out.shape
            else f"; write {name}.astype({str(aval.dtype)!r}) in the step, or give init as {out.dtype}"
        )
        raise StepError(
            f"{name} was {_said(aval)} and became {_said(out)}: shapes and dtypes of the carry stay the same{advice}"
        )
    return changed if any(a is not b for a, b in zip(changed, carry, strict=True)) else None


def _gives_way(aval: Any, other: Any) -> bool:
    """Whether a number without a type of its own may become one of another type."""
    if not getattr(aval, "weak_type", False):
        return False
    number = {"b": False, "i": 0, "u": 0, "f": 0.0, "c": 0j}.get(aval.dtype.kind)
    return number is not None and bool(jnp.result_type(number, other.dtype) == other.dtype)


def _as(value: Any, aval: Any) -> Any:
    """A value as the carry has it."""
    value = vary_like(value, aval)
    if jax.typeof(value).dtype == aval.dtype and jax.typeof(value).weak_type == aval.weak_type:
        return value
    return lax.convert_element_type(value, aval.dtype)


def _said(aval: Any) -> str:
    return f"{aval.dtype}{list(aval.shape)}"


def _other_structure(before: Any, after: Any) -> str:
    old, new = names_of(before, "carry"), names_of(after, "carry")
    gone, come = [name for name in old if name not in new], [name for name in new if name not in old]
    told = f"{', '.join(gone[:4])} {'is' if len(gone) == 1 else 'are'} gone" if gone else ""
    told += (" and " if gone and come else "") + (f"{', '.join(come[:4])} came new" if come else "")
    if not told:
        told = f"it was {tree_structure(before)} and became {tree_structure(after)}".replace("PyTreeDef", "")
    return (
        f"the step must return its carry with the structure that it gets: {told}. Containers stay of the same type, "
        "and None stays None"
    )


def depends_on(jaxpr: Any, flags: Sequence[bool]) -> Flags:
    """Which results of a program depend on flagged arguments."""
    flagged = {var for var, flag in zip(jaxpr.invars, flags, strict=True) if flag}
    for eqn in jaxpr.eqns:
        if any(not hasattr(var, "val") and var in flagged for var in eqn.invars):
            flagged.update(eqn.outvars)
    return tuple(not hasattr(var, "val") and var in flagged for var in jaxpr.outvars)
