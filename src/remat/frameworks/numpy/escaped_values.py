"""Values that leave a step or segment other than as results (`execute/stored_values.py`), under autograd.

The rule: such a value is a plain array, or a box of a closed trace, so a gradient through it would silently be zero. It
is replaced by a box of the caller's trace whose derivative raises an error. The first step of a loop always has a tape,
and its boxes show which values depend on a differentiated one.
"""

from collections.abc import Sequence

import numpy as np
from autograd.extend import defjvp_argnums, defvjp_argnums, primitive

from remat.execute.python_state import Contents
from remat.execute.stored_values import StoredValues, raise_stored
from remat.frameworks.numpy.leaves import fingerprint, numbers
from remat.frameworks.numpy.tape import is_closed_box, plain_value
from remat.pytree import Leaf

__all__ = ["has_new_arrays", "mark_escaped", "stored_numbers"]


@primitive  # type: ignore[untyped-decorator]
def _escaped(value: Leaf, *sources: Leaf, place: str) -> Leaf:
    """A value that was computed from traced sources and has escaped through a container."""
    return value


defvjp_argnums(_escaped, lambda argnums, ans, args, kwargs: lambda g: raise_stored(kwargs["place"]))
defjvp_argnums(_escaped, lambda argnums, tangents, ans, args, kwargs: raise_stored(kwargs["place"]))


def has_new_arrays(before: Contents) -> bool:
    """Whether floating arrays or numbers, which may depend on traced values, were added to containers since then."""
    return any(map(_may_be_traced, _new_leaves(before)))


def stored_numbers(before: Contents) -> list[float]:
    """Fingerprints of the arrays and numbers that were added to containers since then."""
    return [fingerprint(numbers(leaf)) for leaf in _new_leaves(before) if _may_be_traced(leaf)]


def mark_escaped(before: Contents, sources: Sequence[Leaf], place: str) -> None:
    """Replace the traced values that were added to containers since then; `sources` are the input boxes.

    `place` is the file and line of the step or segment.
    """
    stored = StoredValues(before)
    # A group that has a box of a closed trace has traced values; other groups are logs of plain numbers.
    groups = [leaves for leaves in stored.groups() if any(map(is_closed_box, leaves))]
    found = {id(leaf): leaf for leaves in groups for leaf in leaves if _may_be_traced(leaf)}
    stored.replace({key: _escaped(plain_value(leaf), *sources, place=place) for key, leaf in found.items()})


def _new_leaves(before: Contents) -> list[Leaf]:
    return [leaf for leaves in StoredValues(before).groups() for leaf in leaves]


def _may_be_traced(leaf: Leaf) -> bool:
    """Whether a leaf is a floating array or number, or a box of a closed trace."""
    is_number = isinstance(leaf, np.ndarray | np.floating) and leaf.dtype.kind in "fc"
    return is_number or is_closed_box(leaf)
