"""Stages that write into their input, as `nn.ReLU(inplace=True)` does: each belongs to the stage that made the input.

The rule: stages are run once, without a graph; where the version counter of what a group of stages was given differs
afterwards, by the group itself or by a later stage that writes through a view, the group and the one before are one. A
group then writes only into tensors that it has made itself, so that it can be run again. Stages that return nothing but
views of their input (`nn.Flatten`) belong to the one before as well: to keep the view is to keep all of the input, of
whose bytes the view has none. What it can miss: writes that
count no version (`.data`), which the determinism check of segments finds. The cost: one run of all stages; beside the
current state only those are alive that share memory with it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from remat.frameworks.torch.graph import version
from remat.frameworks.torch.leaves import tensors_in
from remat.frameworks.torch.storage import is_dense, storage_id
from remat.pytree import flatten

__all__ = ["StageGroups", "copied", "stage_groups"]


class StageGroups(NamedTuple):
    """Stages that must not be separated, and whether the first of them writes into the input of all."""

    ranges: list[range]
    writes_input: bool


def stage_groups(stages: Sequence[Callable[[Any], Any]], x: Any) -> StageGroups:
    """The stages in groups, found by running them on a copy of `x`."""
    with torch.no_grad():
        state = copied(x)
        starts: list[int] = []
        given: list[list[tuple[Tensor, int]]] = []  # to each group: tensors and their versions
        writes_input = False
        for number, stage in enumerate(stages):
            starts.append(number)
            given.append([(tensor, version(tensor)) for tensor in _counted(state)])
            state = stage(state)
            while len(starts) > 1 and (_written(given[-1]) or _is_view(state, given[-1])):
                starts.pop()
                given.pop()
            writes_input = writes_input or (len(starts) == 1 and _written(given[0]))
            shared = {storage_id(tensor) for tensor in _counted(state)}
            given = [[pair for pair in each if storage_id(pair[0]) in shared] for each in given]
    return StageGroups([*map(range, starts, [*starts[1:], len(stages)])], writes_input)


def copied(x: Any) -> Any:
    """The value with copies of its tensors."""
    leaves, tree = flatten(x)
    return tree.unflatten([leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves])


def _counted(value: Any) -> list[Tensor]:
    """The tensors that count their versions."""
    return [tensor for tensor in tensors_in(value) if is_dense(tensor) and not tensor.is_inference()]


def _is_view(value: Any, given: list[tuple[Tensor, int]]) -> bool:
    """Whether all tensors of a value are in the memory of what was given."""
    memory, tensors = {storage_id(tensor) for tensor, _ in given}, _counted(value)
    return bool(tensors) and all(storage_id(tensor) in memory for tensor in tensors)


def _written(given: list[tuple[Tensor, int]]) -> bool:
    return any(version(tensor) != before for tensor, before in given)
