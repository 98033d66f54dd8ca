"""The traits of an operator: whether it allocates, writes into its arguments, and can be rerun.

The rule: an operator can be rerun if it is one of PyTorch's own (`aten`), writes into nothing, draws no random numbers,
and does not allocate memory for others to fill. Operators of other libraries may print, wait for other processes or
keep state, so their results are kept. So are those of factories (`empty`, `zeros_like`), since kernels that PyTorch
does not see, such as Triton's, may fill them afterwards. Attention and dropout draw random numbers only if their
probability is not zero. Batch norms write into their running statistics, which are not part of their result: they are
rerun on copies of these. An operator that writes into its first argument and returns it (`relu_`, `add_`, `copy_`) can
be rerun on a copy of that argument's previous value.

What it can miss: a kernel that PyTorch does not see and that writes into the result of an operator. Such kernels are
usual in custom `autograd.Function`s, inside which nothing is rerun (lineage.py).

The cost: one table look-up per operator.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from remat.frameworks.torch.internals.dispatch import Operator

__all__ = ["OperatorTraits", "tensors_among", "traits_of"]


_RECURRENT = "rnn"  # not rerun: only where a graph is recorded do they return the workspace that their backward needs
_FACTORIES = ("empty", "zeros", "ones", "full", "new_", "arange", "linspace", "eye", "scalar_tensor", "lift")
_BATCH_NORMS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
_STATISTICS = ("running_mean", "running_var")
_OTHER_MEMORY = ("set_", "resize_", "resize_as_", "copy_sparse_to_sparse_")  # they give a tensor different memory
_CHANCES = ("dropout_p", "p")  # probabilities: if zero, a seeded operator draws nothing


class OperatorTraits(NamedTuple):
    """The traits of an operator that do not depend on its arguments; these are given as (position, name)."""

    name: str
    is_view: bool
    writes: tuple[tuple[int, str], ...]  # the arguments that it writes into
    statistics: tuple[tuple[int, str], ...]  # running statistics of a batch norm: not part of `writes`
    training: tuple[int, str] | None  # of a batch norm: the argument that says whether it writes into them
    repeatable: bool
    in_place: bool  # writes into its first argument, and can be rerun on a copy of that
    chance: tuple[int, str] | None  # the argument that must be zero for a rerun

    def may_run_again(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether rerunning the operator on these arguments gives the same results, without side effects."""
        return self.repeatable and (self.chance is None or _argument(self.chance, args, kwargs, 0.0) == 0.0)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
        """The tensors that the operator writes into."""
        return tensors_among(_argument(each, args, kwargs) for each in self.writes)

    def scratch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
        """The arguments that it writes into and does not read: running statistics of a batch norm in training."""
        is_training = self.training is not None and _argument(self.training, args, kwargs, True)
        return self.statistics if is_training else ()


@cache
def traits_of(operator: Operator) -> OperatorTraits:
    """The traits of an operator."""
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
    """Whether an operator changes the elements of its first argument, returns it, and does nothing else."""
    schema = operator._schema
    if [at for at, _ in writes] != [0] or len(schema.returns) != 1 or torch.Tag.inplace_view in operator.tags:
        return False
    name, first = schema.name.removeprefix("aten::"), schema.arguments[0]
    return name.endswith("_") and name not in _OTHER_MEMORY and str(first.type) == "Tensor"


def tensors_among(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results of an operator, which may be in lists or tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_among(value)


def _argument(where: tuple[int, str], args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None) -> Any:
    at, name = where
    return args[at] if at < len(args) else kwargs.get(name, default)
