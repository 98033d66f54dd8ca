"""Checks that steps do not modify their inputs: a modified input or kept carry would give a recomputation other values.

The rule: the version counters of the carry and of all inputs are the same after steps as before. What it can miss:
writes by `.data` or by kernels that do not bump the version, which the determinism check finds if results differ. The
cost is a weak reference and two reads of a counter for each leaf and range of steps.
"""

from collections.abc import Iterable
from typing import Any
from weakref import ref

from torch import Tensor

from remat.errors import StepError
from remat.frameworks.torch.internals.graph import version
from remat.frameworks.torch.leaves import spec_of

__all__ = ["InputVersions", "step_mutation_error", "was_written_into"]


class InputVersions:
    """The versions of some leaves, without keeping any of them alive."""

    def __init__(self, leaves: Iterable[Any]) -> None:
        # Weak references: a check must not keep a carry alive that the plan has dropped.
        self._versions = [(ref(leaf), version(leaf)) for leaf in leaves if isinstance(leaf, Tensor)]

    def check(self, start: int, stop: int) -> None:
        """Raise a StepError if steps start..stop-1 have modified one of them."""
        for reference, before in self._versions:
            tensor = reference()
            if tensor is not None and version(tensor) != before:
                steps = f"step {start}" if stop == start + 1 else f"one of the steps {start} to {stop - 1}"
                raise step_mutation_error(steps, f"a {spec_of(tensor, 'tensor')} has changed")


def step_mutation_error(steps: str, what: str) -> StepError:
    """The error for steps that modify their input or a kept carry."""
    return StepError(
        f"{steps} writes into what it is given ({what}): its input x, or a carry that is kept to be used again. Make a "
        "new tensor instead, as in h = h + dh for h += dh"
    )


def was_written_into(error: Exception) -> bool:
    """Whether an error of autograd or a segment says that a saved tensor was modified; it has no type of its own."""
    return "modified by an inplace operation" in str(error) or "was written into" in str(error)
