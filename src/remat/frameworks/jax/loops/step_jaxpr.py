"""A user's step as a jaxpr of flat arrays (`StepJaxpr`): closure converted and checked.

In: a step, and the avals of its carry and inputs. Out: a `StepJaxpr`, which runs without the user's Python and takes
what the step closes over as arguments; and the carry, with the dtypes that the step gives it.
"""

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import keystr, tree_flatten, tree_flatten_with_path, tree_structure, tree_unflatten

from remat.errors import StepError
from remat.frameworks.jax.avals import (
    Array,
    Aval,
    ClosedJaxpr,
    Flags,
    aval_of,
    inputs_needed,
    jaxpr_as_fun,
    select,
    vary_like,
    without_unused,
)
from remat.frameworks.jax.transforms.cache_key import cache_key, has_custom_rules
from remat.frameworks.jax.transforms.differentiable import Arrays, CacheKeyed
from remat.frameworks.jax.transforms.propagation import active_results, forwarded_inputs, grow
from remat.pytree import Leaf, PyTree

__all__ = ["StepJaxpr", "TracedStep", "hoist_invariants", "names_of", "trace_condition", "trace_step", "with_hoisted"]


class StepJaxpr(CacheKeyed):
    """A program (consts, carry, x) → (carry, y) of flat arrays, with `n_consts` consts and `n_carry` carry leaves."""

    def __init__(self, program: ClosedJaxpr, n_consts: int, n_carry: int) -> None:
        self.program, self.n_consts, self.n_carry = program, n_consts, n_carry
        self.out_avals = program.out_avals
        program_key = cache_key(program)
        self.key = None if program_key is None else (program_key, n_consts, n_carry)

    def __call__(self, consts: Arrays, carry: Arrays, x: Arrays) -> tuple[list[Array], list[Array]]:
        """The next carry and the output."""
        results = jaxpr_as_fun(self.program)(*consts, *carry, *x)
        return results[: self.n_carry], results[self.n_carry :]

    @property
    def has_custom_rules(self) -> bool:
        """Whether it calls functions with their own derivative rules (jax.custom_vjp or jax.custom_jvp)."""
        return has_custom_rules(self.program)

    @property
    def avals(self) -> list[Aval]:
        """The avals of its arguments."""
        return list(self.program.in_avals)

    @property
    def y_avals(self) -> list[Aval]:
        """The avals of its output."""
        return list(self.out_avals[self.n_carry :])

    def active(self, consts: Flags, carry: Flags, x: Flags) -> tuple[Flags, Flags]:
        """Which leaves of carry and output get tangents from the flagged arguments, after any number of steps."""
        return grow(lambda carry: active_results(self.program, (*consts, *carry, *x)), carry)

    def inputs_of(self, carry: Flags, ys: Flags) -> Flags:
        """Which leaves of a carry the flagged outputs, and carry leaves after any number of steps, depend on."""
        n, m = self.n_consts, self.n_carry
        return grow(lambda carry: inputs_needed(self.program, (*carry, *ys))[n : n + m], carry)[0]

    @classmethod
    def of(cls, function: Callable[..., Any], avals: Sequence[Aval], n_consts: int, n_carry: int) -> "StepJaxpr":
        """The step of a function of lists (consts, carry, x) → (carry, y)."""

        def flat(*args: Array) -> list[Array]:
            after, y = function(args[:n_consts], args[n_consts : n_consts + n_carry], args[n_consts + n_carry :])
            return [*after, *y]

        program = jax.make_jaxpr(flat)(*avals)
        # Remove what no result needs: an unused derivative may be one that cannot be computed.
        return cls(without_unused(program, [True] * len(program.out_avals)), n_consts, n_carry)


class TracedStep(NamedTuple):
    """A step, the values it closes over and starts with, and the structures of its carry and output."""

    step: StepJaxpr
    consts: list[Array]
    carry: list[Array]
    carry_tree: Any
    y_tree: Any


def trace_step(step: Callable[[PyTree, PyTree], PyTree], init: PyTree, x: PyTree) -> TracedStep:
    """The step as a jaxpr, where `x` has the avals of one input; raises a StepError if it is not a loop body."""
    leaves, tree = tree_flatten(init)
    names = names_of(init, "carry")
    carry = [_as_array(leaf, name.replace("carry", "init", 1)) for leaf, name in zip(leaves, names, strict=True)]
    y_trees: list[Leaf] = []

    def traced(carry: PyTree, x: PyTree) -> list[Array]:
        after, y = _unpack_output(step(carry, x), init)
        y_trees.append(tree_structure(y))
        if tree_structure(after) != tree:  # type: ignore[operator]
            raise StepError(_structure_message(init, after))
        return [*tree_flatten(after)[0], *tree_flatten(y)[0]]

    if hasattr(step, "__name__"):
        wraps(step)(traced)  # so that JAX's errors name the user's function and its arguments
    # The dtype that a step gives one leaf may promote another leaf in the next step, so trace until nothing changes;
    # each round settles at least one leaf.
    for _ in range(len(carry) + 1):
        avals = [aval_of(leaf) for leaf in carry]
        program = jax.make_jaxpr(traced)(tree_unflatten(tree, avals), x)
        promoted = _promote(carry, program.out_avals[: len(carry)], names)
        if promoted is None:
            break
        carry = promoted
    consts = list(program.consts)

    def closed(consts: Arrays, carry: Arrays, x: Arrays) -> tuple[list[Array], list[Array]]:
        results = jaxpr_as_fun(ClosedJaxpr(program.jaxpr, list(consts)))(*carry, *x)
        # A weakly typed result may replace a leaf of its kind; in the carry it gets the leaf's own dtype.
        after = [_cast_like(value, aval) for value, aval in zip(results, avals, strict=False)]
        return after, results[len(avals) :]

    step_avals = [*map(aval_of, consts), *avals, *tree_flatten(x)[0]]
    return TracedStep(StepJaxpr.of(closed, step_avals, len(consts), len(carry)), consts, carry, tree, y_trees[-1])


def hoist_invariants(traced: TracedStep) -> tuple[TracedStep, Flags]:
    """The step with the invariant leaves of its carry turned into constants, and which leaves these are.

    A leaf is invariant if the step returns it unchanged. As a constant it is not kept with each state, and what is
    computed from constants alone is computed once.
    """
    step = traced.step
    origins = forwarded_inputs(step.program.jaxpr)[: step.n_carry]
    invariant = tuple(origin == step.n_consts + k for k, origin in enumerate(origins))
    consts, carry = [*traced.consts, *select(invariant, traced.carry)], select([not k for k in invariant], traced.carry)
    return traced._replace(step=with_hoisted(step, invariant), consts=consts, carry=carry), invariant


def with_hoisted(step: StepJaxpr, invariant: Flags) -> StepJaxpr:
    """The step with the invariant leaves of its carry moved to the end of its constants."""
    if not any(invariant):
        return step
    n, m, varies = step.n_consts, step.n_carry, tuple(not flag for flag in invariant)

    def hoisted(consts: Arrays, carry: Arrays, x: Arrays) -> tuple[list[Array], list[Array]]:
        rest, hoisted_leaves = iter(carry), iter(consts[n:])
        after, y = step(consts[:n], [next(hoisted_leaves if flag else rest) for flag in invariant], x)
        return select(varies, after), y

    carry_avals = step.avals[n : n + m]
    avals = [*step.avals[:n], *select(invariant, carry_avals), *select(varies, carry_avals), *step.avals[n + m :]]
    return StepJaxpr.of(hoisted, avals, n + sum(invariant), sum(varies))


def trace_condition(cond: Callable[[PyTree], PyTree], traced: TracedStep) -> tuple[StepJaxpr, list[Array]]:
    """A condition as a step that returns its carry unchanged and outputs the answer, and what it closes over."""
    avals = [aval_of(leaf) for leaf in traced.carry]

    def flat(*carry: Array) -> Array:
        answer = tree_flatten(cond(tree_unflatten(traced.carry_tree, carry)))[0]
        if len(answer) != 1 or jnp.shape(answer[0]):
            what = f"an array of shape {jnp.shape(answer[0])}" if len(answer) == 1 else f"{len(answer)} values"
            raise StepError(f"cond must return one truth value, and returned {what}; jnp.all and jnp.any make one")
        return jnp.asarray(answer[0]).astype(bool)

    program = jax.make_jaxpr(flat)(*avals)
    consts = list(program.consts)

    def closed(consts: Arrays, carry: Arrays, x: Arrays) -> tuple[list[Array], list[Array]]:
        return list(carry), jaxpr_as_fun(ClosedJaxpr(program.jaxpr, list(consts)))(*carry)

    return StepJaxpr.of(closed, [*map(aval_of, consts), *avals], len(consts), len(avals)), consts


def names_of(value: PyTree, root: str) -> list[str]:
    """A name for each leaf, written as a Python expression."""
    return [root + keystr(path) for path, _ in tree_flatten_with_path(value)[0]]


def _as_array(leaf: Leaf, name: str) -> Array:
    try:
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        advice = ""
        if is_dataclass(leaf):
            advice = ". Register it as a container of JAX, by jax.tree_util.register_dataclass"
        elif callable(leaf):
            advice = ". Let the step close over functions: of a module, arrays alone go into the carry"
        raise StepError(f"{name} is a {type(leaf).__name__}, and must be an array or a number{advice}") from error


def _unpack_output(out: PyTree, init: PyTree) -> tuple[Any, Any]:
    tree: Any = tree_structure(init)
    alone = tree_structure(out) == tree  # a carry of two items looks like (carry, y): the structure tells them apart
    if isinstance(out, tuple | list) and len(out) == 2 and (not alone or tree_structure(out[0]) == tree):
        return out[0], out[1]
    what = "None" if out is None else f"a {type(out).__name__}"
    what += f" of {len(out)}" if isinstance(out, tuple | list) else ""
    what = "the carry alone" if alone else what
    raise StepError(
        f"the step must return (carry, y), and returned {what}; without an output return (carry, None), with all parts "
        "of the carry in one"
    )


def _promote(carry: list[Array], after: Sequence[Aval], names: list[str]) -> list[Array] | None:
    """The carry with the dtypes that the step gives weakly typed leaves (Python numbers); None if nothing changes."""
    changed = list(carry)
    for k, (value, out, name) in enumerate(zip(carry, after, names, strict=True)):
        changed[k] = value = vary_like(value, out)  # inside shard_map a constant becomes a per-device value
        aval = aval_of(value)
        if aval.shape == out.shape and (aval.dtype == out.dtype or _promotes_to(out, aval)):
            # Right dtype, but weak: a loop needs the same type before and after a step, so make it strong.
            if aval.weak_type and not getattr(out, "weak_type", False) and aval.dtype == out.dtype:
                changed[k] = lax.convert_element_type(value, aval.dtype)
            continue
        if aval.shape == out.shape and _promotes_to(aval, out):
            changed[k] = jnp.asarray(value).astype(out.dtype)
            continue
        advice = (
            f"; write init with shape {tuple(out.shape)}, or keep the shape in the step"
            if aval.shape != out.shape
            else f"; write {name}.astype({str(aval.dtype)!r}) in the step, or give init as {out.dtype}"
        )
        raise StepError(
            f"{name} was {_describe(aval)} and became {_describe(out)}: "
            f"shapes and dtypes of the carry stay the same{advice}"
        )
    return changed if any(a is not b for a, b in zip(changed, carry, strict=True)) else None


def _promotes_to(aval: Aval, other: Aval) -> bool:
    """Whether a weakly typed value may take the dtype of the other by JAX's promotion rules."""
    if not getattr(aval, "weak_type", False):
        return False
    # A Python number of the same kind stands in, since jnp.result_type accepts no weakly typed aval.
    number = {"b": False, "i": 0, "u": 0, "f": 0.0, "c": 0j}.get(aval.dtype.kind)
    return number is not None and bool(jnp.result_type(number, other.dtype) == other.dtype)


def _cast_like(value: Array, aval: Aval) -> Array:
    """A value returned by a step, with the dtype and the varying mesh axes of the carry."""
    value = vary_like(value, aval)
    if jax.typeof(value).dtype == aval.dtype and jax.typeof(value).weak_type == aval.weak_type:
        return value
    return lax.convert_element_type(value, aval.dtype)


def _describe(aval: Aval) -> str:
    return f"{aval.dtype}{list(aval.shape)}"


def _structure_message(before: PyTree, after: PyTree) -> str:
    old, new = names_of(before, "carry"), names_of(after, "carry")
    gone, come = [name for name in old if name not in new], [name for name in new if name not in old]
    change = f"{', '.join(gone[:4])} {'is' if len(gone) == 1 else 'are'} gone" if gone else ""
    change += (" and " if gone and come else "") + (f"{', '.join(come[:4])} came new" if come else "")
    if not change:
        change = f"it was {tree_structure(before)} and became {tree_structure(after)}".replace("PyTreeDef", "")
    return (
        f"the step must return its carry with the structure that it gets: {change}. Containers stay of the same type, "
        "and None stays None"
    )
