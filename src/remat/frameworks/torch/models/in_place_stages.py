"""Stages that write into their input, such as `nn.ReLU(inplace=True)`: each is grouped with the stage before it.

The rule: stages are run once, without a graph if they can. If the version of a group's input has changed afterwards,
because the group or a later stage (through a view) wrote into it, the group is merged with the one before. A group then
writes only into tensors that it has made itself, so it can be recomputed. Stages that return only views of their input
(`nn.Flatten`) are merged with the stage before as well: keeping the view means keeping the whole input, while the view
has no bytes of its own. What it can miss: writes that bypass the version counter (`.data`), which the determinism check
of segments detects. The cost: one run of all stages; besides the current state, only states that share memory with it
are alive.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from remat.frameworks.torch.internals.graph import version
from remat.frameworks.torch.internals.storage import is_dense, storage_id
from remat.frameworks.torch.leaves import tensors_in
from remat.frameworks.torch.models.runs_without_graph import without_graph_if_possible
from remat.pytree import flatten

__all__ = ["StageGroups", "copied", "stage_groups"]


class StageGroups(NamedTuple):
    """Groups of stages that must not be separated, and whether the first group writes into the chain's input."""

    ranges: list[range]
    writes_input: bool


def stage_groups(stages: Sequence[Callable[[Any], Any]], x: Any) -> StageGroups:
    """Group the stages, by running them on a copy of `x`."""
    with torch.no_grad():
        state = copied(x)
    starts: list[int] = []
    given: list[list[tuple[Tensor, int]]] = []  # to each group: tensors and their versions
    writes_input = False
    for number, stage in enumerate(stages):
        starts.append(number)
        given.append([(tensor, version(tensor)) for tensor in _counted(state)])
        state = without_graph_if_possible(partial(stage, state))
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
    """The tensors that have a version counter."""
    return [tensor for tensor in tensors_in(value) if is_dense(tensor) and not tensor.is_inference()]


def _is_view(value: Any, given: list[tuple[Tensor, int]]) -> bool:
    """Whether all tensors of a value are in the memory of the given tensors."""
    memory, tensors = {storage_id(tensor) for tensor, _ in given}, _counted(value)
    return bool(tensors) and all(storage_id(tensor) in memory for tensor in tensors)


def _written(given: list[tuple[Tensor, int]]) -> bool:
    return any(version(tensor) != before for tensor, before in given)
