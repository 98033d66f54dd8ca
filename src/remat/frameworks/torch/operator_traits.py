"""What is known of an operator: whether it makes memory, writes into its arguments, and may run again.

Rule. An operator may run again if it is one of PyTorch's own (`aten`), writes into nothing, and neither draws random
numbers nor makes memory that others fill. Operators of other libraries may print, wait for other processes or keep
state: what they make is kept. So is what factories make (`empty`, `zeros_like`): kernels that PyTorch does not see, as
those of Triton, fill it afterwards. Attention and dropout draw random numbers only if their probability is not zero.
Batch norms write into their running statistics, which are no part of their result: they run again with copies of them.
An operator that writes into its first argument (`relu_`, `add_`, `copy_`) and returns it may run again on a copy of
what that had been.

What it can miss: a kernel that PyTorch does not see and that writes into the result of an operator. Inside of a custom
`autograd.Function`, where such kernels are at home, nothing runs again (lineage.py).

The cost: a look into a table for each operator that runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from remat.frameworks.torch.dispatch import Operator

__all__ = ["OperatorTraits", "tensors_among", "traits_of"]


_RECURRENT = "rnn"  # they make a work space for their backward only where gradients are recorded, which is not so again
_FACTORIES = ("empty", "zeros", "ones", "full", "new_", "arange", "linspace", "eye", "scalar_tensor", "lift")
_BATCH_NORMS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
_STATISTICS = ("running_mean", "running_var")
_OTHER_MEMORY = ("set_", "resize_", "resize_as_", "copy_sparse_to_sparse_")  # they give a tensor other memory
_CHANCES = ("dropout_p", "p")  # arguments that are zero where an operator with a seed draws nothing


class OperatorTraits(NamedTuple):
    """What is known of an operator, whatever its arguments are; arguments by position and name."""

    name: str
    is_view: bool
    writes: tuple[tuple[int, str], ...]  # arguments
    statistics: tuple[tuple[int, str], ...]  # running ones of a batch norm: not part of `writes`
    training: tuple[int, str] | None  # of a batch norm: the argument that says whether it writes into them
    repeatable: bool
    in_place: bool  # writes into its first argument, and may do so again in a copy
    chance: tuple[int, str] | None  # the argument that must be zero to run it again

    def may_run_again(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the operator gives the same again for these arguments, and does nothing else."""
        return self.repeatable and (self.chance is None or _argument(self.chance, args, kwargs, 0.0) == 0.0)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
        """The tensors that the operator writes into."""
        return tensors_among(_argument(each, args, kwargs) for each in self.writes)

    def scratch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
        """The arguments that the operator writes into and does not read: statistics of a batch norm that trains."""
        is_training = self.training is not None and _argument(self.training, args, kwargs, True)
        return self.statistics if is_training else ()


@cache
def traits_of(operator: Operator) -> OperatorTraits:
    """What is known of an operator."""
    schema = operator._schema
    namespace, _, name = schema.name.partition("::")
    arguments = [((at, each.name), each) for at, each in enumerate(schema.arguments)]
    is_norm = namespace == "aten" and name in _BATCH_NORMS
    writes = tuple(where for where, each in arguments if each.alias_info is not None and each.alias_info.is_write)
    if is_norm:
        writes = tuple(where for where in writes if where[1] not in _STATISTICS)
    is_random = torch.Tag.nondeterministic_seeded in operator.tags
    chance = next((where for where, each in arguments if is_random and each.name in _CHANCES), None)
    is_seeded = is_random and chance is None
    is_known = namespace == "aten" and not is_seeded and _RECURRENT not in name
    return OperatorTraits(
        name if namespace == "aten" else f"{namespace}.{name}",
        operator.is_view,
        writes,
        tuple(where for where, each in arguments if is_norm and each.name in _STATISTICS),
        next((where for where, each in arguments if is_norm and each.name in ("training", "train")), None),
        is_known and not writes and not name.startswith(_FACTORIES),
        is_known and not is_random and _is_in_place(operator, writes),
        chance,
    )


def _is_in_place(operator: Operator, writes: tuple[tuple[int, str], ...]) -> bool:
    """Whether an operator changes the numbers of its first argument, returns it, and does nothing else."""
    schema = operator._schema
    if [at for at, _ in writes] != [0] or len(schema.returns) != 1 or torch.Tag.inplace_view in operator.tags:
        return False
    name, first = schema.name.removeprefix("aten::"), schema.arguments[0]
    return name.endswith("_") and name not in _OTHER_MEMORY and str(first.type) == "Tensor"


def tensors_among(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results of an operator, which are lists at most."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_among(value)


def _argument(where: tuple[int, str], args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None) -> Any:
    at, name = where
    return args[at] if at < len(args) else kwargs.get(name, default)
