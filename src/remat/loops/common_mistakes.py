"""Hints for errors of the first step that misunderstood arguments cause: a list of inputs, swapped parameters.

The rule: nothing that can run is refused, except a body that answers yes or no where the carry is a float. `xs` is a
container of arrays with one row for each step, as in jax.lax.scan. Its type does not show whether a list has one entry
for each step instead, nor does a step's type show that it takes its arguments in the opposite order. So the step runs,
and if it fails, its error says what may have been meant.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from remat.errors import StepError
from remat.pytree import PyTree

__all__ = ["LIST_OF_STEPS", "explaining_mistakes", "is_float", "refuse_bool"]

LIST_OF_STEPS = (
    "a list is a container of inputs, each with one row for each step, as in jax.lax.scan. If it has one entry for "
    "each step, stack it: torch.stack(xs), jax.numpy.stack(xs) or numpy.stack(xs)"
)
# Names of parameters of steps that take their input first.
INPUTS = ("x", "xs", "x_t", "xt", "inp", "input", "inputs")
STATES = ("h", "hx", "hc", "h_prev", "hidden", "hidden_state", "state", "carry")


@contextmanager
def explaining_mistakes(step: Callable[..., Any], xs: PyTree) -> Iterator[None]:
    """A context that runs a loop: an error of its first step says whether the step or `xs` may be misunderstood."""
    try:
        yield
    except Exception as error:
        notes = [note for note in getattr(error, "__notes__", ()) if "of a loop that remat runs" in note]
        if not notes or "in step 0 " in notes[0]:
            if notes or isinstance(error, TypeError):  # errors of steps that JAX traces have no notes
                _explain_order(step, error)
            if isinstance(error, TypeError | AttributeError) and not isinstance(error, StepError):
                _explain_list(xs, error)
        raise


def is_float(value: PyTree) -> bool:
    """Whether a value is a single float or array of floats."""
    return isinstance(value, float) or "float" in str(getattr(value, "dtype", ""))


def refuse_bool(after: PyTree) -> PyTree:
    """What the body of a while_loop returns for a carry that is a float, or a StepError if it is a bool.

    Python's numbers are promoted, so with cond and body swapped the loop would go on forever, or return a bool.
    """
    if isinstance(after, bool) or str(getattr(after, "dtype", "")) in ("bool", "torch.bool"):
        raise StepError(
            "the body returns a bool, and the carry is a float. The condition comes first: write "
            "remat.while_loop(cond, body, init, slots=...)"
        )
    return after


def _explain_order(step: Callable[..., Any], error: Exception) -> None:
    """Add a note if the names of the step's parameters suggest that it takes its input first."""
    try:
        names = list(inspect.signature(getattr(step, "forward", step)).parameters)[:2]
    except (TypeError, ValueError):  # a builtin may have no signature
        return
    if len(names) == 2 and names[0] in INPUTS and names[1] in STATES:
        error.add_note(
            f"a step is called with (carry, x), and this one takes ({', '.join(names)}): if its input comes first, "
            "give lambda carry, x: step(x, carry) instead"
        )


def _explain_list(xs: PyTree, error: Exception) -> None:
    """Raise a StepError if the error is about `x` being a list, as `xs` is."""
    if type(xs) not in (list, tuple) or len(set(map(_kind, xs))) != 1:
        return  # arrays of several shapes are meant as a container
    kind, shape = type(xs).__name__, getattr(xs[0], "shape", None)
    if shape is None or not re.search(rf"\b{kind}\b", str(error)):
        return
    raise StepError(
        f"xs is a {kind} of {len(xs)} arrays of shape {list(shape)}, so x is a {kind} of {len(xs)} rows of shape "
        f"{list(shape[1:])}, and the step does not take that ({str(error).splitlines()[0]}): {LIST_OF_STEPS}"
    ) from error


def _kind(x: Any) -> tuple[str, str]:
    return str(getattr(x, "shape", "")), str(getattr(x, "dtype", ""))
