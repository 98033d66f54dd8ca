"""Values that leave a step or segment by another way than its results: lists of losses, attributes, caches.

The rule: such a value is a plain array, or a box of a trace that is closed, so a gradient through it would silently be
zero. It is replaced by a box of the caller's trace, which can be printed and computed with as in the plain program, and
whose derivative is an error that says what to return instead.

What it can miss: values in places that are no containers, and values that only steps without a tape have stored; the
first step of a loop always has one.

The cost: a comparison of the containers that the step reaches, once a call.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from autograd.extend import defjvp_argnums, defvjp_argnums, primitive

from remat.errors import StepError
from remat.execute.python_state import Container, Contents
from remat.frameworks.numpy.leaves import fingerprint, numbers
from remat.frameworks.numpy.tape import is_closed_box, plain_value
from remat.pytree import Leaf

__all__ = ["has_new_arrays", "mark_escaped", "stored_numbers"]


@primitive  # type: ignore[untyped-decorator]
def _escaped(value: Leaf, *sources: Leaf) -> Leaf:
    """A value that was computed from traced sources, and has left by a container."""
    return value


def _raise(*args: object) -> NoReturn:
    raise StepError(
        "a value that a step or segment has put into a list, a dict or an attribute is differentiated, and its "
        "gradient would be lost: it was not among the results. Return it, as an output y of the step or as a result of "
        "the segment"
    )


defvjp_argnums(_escaped, lambda argnums, ans, args, kwargs: _raise)
defjvp_argnums(_escaped, _raise)


def has_new_arrays(before: Contents) -> bool:
    """Whether containers have got floating arrays or numbers since then, which may depend on traced values."""
    return any(True for _ in _new_arrays(before))


def stored_numbers(before: Contents) -> list[float]:
    """Fingerprints of the arrays and numbers that containers have got since then."""
    return [fingerprint(numbers(item)) for _, _, item in _new_arrays(before)]


def mark_escaped(before: Contents, sources: Sequence[Leaf]) -> None:
    """Replace the traced values that containers have got since then; `sources` are the boxes that went in."""
    found = list(_new_arrays(before))
    # A container with one box of a closed trace has traced values in it; others are logs of plain numbers.
    traced = {id(container) for container, _, item in found if is_closed_box(item)}
    for container, key, item in found:
        if id(container) in traced and (is_closed_box(item) or not isinstance(container, dict)):
            container[key] = _escaped(plain_value(item), *sources)


def _new_arrays(before: Contents) -> Iterator[tuple[dict[object, Leaf] | list[Leaf] | deque[Leaf], Leaf, Leaf]]:
    """Containers, keys and items that are floating arrays, numbers or boxes, and were not there before."""
    changed = before.changed()
    for container, old in [*changed.pairs, *((container, []) for container in changed.empty)]:
        if isinstance(container, set):
            continue
        # Of a long container only the end is known, so that all its items may be new.
        known = set(map(id, _items(old).values())) if isinstance(old, dict | list) else set()
        for key, item in _items(container).items():
            is_number = isinstance(item, np.ndarray | np.floating) and item.dtype.kind in "fc"
            if (is_number or is_closed_box(item)) and id(item) not in known:
                yield container, key, item


def _items(container: Container) -> dict[object, Leaf]:
    return container if isinstance(container, dict) else dict(enumerate(container))
