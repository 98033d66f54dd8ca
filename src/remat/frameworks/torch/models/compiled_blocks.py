"""Blocks of a model as compiled code that keeps what the plan says.

The rule: each block is compiled separately, and the code around blocks in pieces that end where blocks are called: a
compiler that sees several blocks moves operators between them, which changes the peak. One function is compiled for
each class of blocks and each choice of what to recompute; blocks of a class share it. The compiler gets the choice as a
selective checkpoint around the block, whose policy identifies operators by name and occurrence, as plans do. Whole
ranges of blocks are recomputed outside compiled code, as in eager mode.

What it can miss: operators that the compiler sees in another order or under another name than eager mode does. Then
something else is kept: more or less memory, which the trial of the plan measures, and the same gradient.

A function that calls blocks in a loop is not compiled: the compiler gives up on loops with graph breaks.

The cost: some seconds for each class of blocks, choice and dtype, once. Blocks that write into their tensors have no
choices, since PyTorch's selective checkpoints do not accept them.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any, Self

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from remat.frameworks.torch.internals.dispatch import Operator
from remat.frameworks.torch.internals.functorch import in_transform
from remat.frameworks.torch.lineage.lineage import Dropped, OperatorCounter, dropped_results
from remat.frameworks.torch.lineage.operator_traits import traits_of
from remat.problem import Graph

__all__ = ["CompileOptions", "CompiledBlock", "compiled_around_blocks", "compiled_block", "fused"]

_HEAVY = ("mm", "bmm", "conv", "attention", "lstm", "gru", "fft", "sort", "topk", "index", "scatter")
_FUSED = 0.1  # of the time that an operator takes when it is not fused

CompileOptions = tuple[tuple[str, Hashable], ...]  # arguments of torch.compile


class CompiledBlock(partial[Any]):
    """A block as compiled code, as a function of its arguments."""

    options: CompileOptions
    plain: Callable[..., Any]

    @classmethod
    def of(cls, method: MethodType, options: CompileOptions, remade: tuple[str, ...] = ()) -> Self:
        """The block of a bound method, which recomputes these results of operators in its backward."""
        made = cls(_compiled(method.__func__, remade, options), method.__self__)
        vars(made).update(options=options, plain=method)
        return made

    def remaking(self, remade: tuple[str, ...]) -> Callable[..., Any]:
        """The same block with another choice of what to recompute."""
        assert isinstance(self.plain, MethodType)
        return self.of(self.plain, self.options, remade) if remade else self


def compiled_block(fn: Callable[..., Any], options: CompileOptions) -> Callable[..., Any]:
    """A block as compiled code; unchanged if it is not a Python method, or under transforms of torch.func."""
    if not isinstance(fn, MethodType) or not isinstance(fn.__func__, FunctionType) or in_transform():
        return fn
    return CompiledBlock.of(fn, options)


def compiled_around_blocks(fn: Callable[..., Any], options: CompileOptions) -> Callable[..., Any]:
    """A model's forward as compiled code, in which calls of blocks are left to Python."""
    return compiled_block(fn, tuple(each for each in options if each[0] != "fullgraph"))


def fused(graph: Graph) -> Graph:
    """The graph with the times of compiled code, which fuses all but products, convolutions, attention and the like."""
    operations = []
    for each in graph.operations:
        is_heavy = any(word in each.name for word in _HEAVY)
        operations.append({**each.to_dict(), "seconds": each.seconds * (1.0 if is_heavy else _FUSED)})
    return Graph.from_dict({**graph.to_dict(), "operations": operations})


@lru_cache(maxsize=256)
def _compiled(method: FunctionType, remade: tuple[str, ...], options: CompileOptions) -> Callable[..., Any]:
    contexts = partial(_contexts, dropped_results(remade))  # the compiler traces a partial, and no closure of ours

    def plain(module: Any, *args: Any, **kwargs: Any) -> Any:
        return method(module, *args, **kwargs)

    def selective(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():  # torch's checkpoint would only warn
            return method(module, *args, **kwargs)
        block = partial(method, module)
        return checkpoint(block, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    function = selective if remade else plain
    # The compiler limits how often it compiles one code object, so each function gets its own.
    code = function.__code__.replace(co_name=f"{method.__name__} of {method.__qualname__}")
    made = FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    arguments: Any = {name: dict(value) if isinstance(value, tuple) else value for name, value in options}
    compiled: Callable[..., Any] = torch.compile(made, **arguments)
    return compiled


def _contexts(dropped: Dropped) -> Any:
    counter = OperatorCounter()

    def policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        # Recomputing views costs nothing; higher-order operators, such as the checkpoint itself, are not in the plan.
        if not isinstance(operator, Operator) or operator.is_view:
            return CheckpointPolicy.PREFER_RECOMPUTE
        name = traits_of(operator).name
        is_dropped = (name, counter.next(name)) in dropped
        return CheckpointPolicy.MUST_RECOMPUTE if is_dropped else CheckpointPolicy.MUST_SAVE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
