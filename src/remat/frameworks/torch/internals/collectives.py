"""The process groups that a step waits for, found from the collectives that it runs; and DDP around a measurement.

This file uses private names: dispatch modes see every op, collectives take their group as an argument of a private
type, and DDP notes which model runs. Checked with PyTorch 2.11 and 2.13. What it can miss: collectives in compiled
code.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remat.errors import ProblemError

__all__ = ["device_of", "groups_of", "groups_used", "is_single_process", "refuse_static_ddp"]

BETWEEN_TWO = ("send", "recv")  # point to point: the other members of the group do not take part


def is_single_process() -> bool:
    """Whether torch.distributed is not initialized, or has one process only."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1


def refuse_static_ddp(what: str) -> None:
    """Raise a ProblemError that begins with `what` in the forward of a DDP model with static_graph=True.

    DDP then counts how often each gradient is added in its first step, those of measurements included.
    """
    around: Any = DistributedDataParallel._active_ddp_module
    if around is not None and around.static_graph:
        raise ProblemError(
            f"{what} is measured inside DistributedDataParallel(static_graph=True), which would take the gradients of "
            "the measurement for those of the model: call it once before wrapping the model, on an input of the same "
            "shape, or give auto_checkpoint a sample="
        )


@contextmanager
def groups_used(*, enabled: bool) -> Iterator[list[Any]]:
    """Yield a list of the process groups of all collectives in the block, in the order of first use."""
    groups: list[Any] = []
    if not enabled or is_single_process():
        yield groups
        return
    with _Collectives(groups):
        yield groups


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that notes process groups."""

    def __init__(self, groups: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._groups = groups

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and note the groups that it waits for."""
        leaves = tree_leaves((args, kwargs))
        if "c10d" in func.namespace and not func.__name__.startswith(BETWEEN_TWO):
            self._add(filter(None, map(_group, leaves)))
        # A mode does not see the collectives that operations on DTensors run internally.
        self._add(groups_of([leaf.device_mesh for leaf in leaves if hasattr(leaf, "device_mesh")]))
        return func(*args, **(kwargs or {}))

    def _add(self, groups: Any) -> None:
        self._groups.extend(group for group in groups if group not in self._groups)


def _group(argument: object) -> Any:
    """The process group that an argument of a collective stands for; None if it is something else."""
    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        return dist.ProcessGroup.unbox(argument)
    if isinstance(argument, str):  # the name of a group, or of a reduction
        names = dist.distributed_c10d._world.pg_names
        return next((group for group, name in names.items() if name == argument), None)
    return None


def groups_of(meshes: Sequence[Any]) -> list[Any]:
    """The process groups of all dimensions of the meshes, each once."""
    return list(dict.fromkeys(group for mesh in meshes for group in mesh.get_all_groups()))


def device_of(group: Any) -> torch.device:
    """A device whose tensors the group can exchange, the CPU if possible."""
    devices: list[torch.device] = group._device_types
    return torch.device("cpu") if torch.device("cpu") in devices else devices[0]
