"""Which modules of a model are its blocks: the units that a plan keeps or recomputes.

The rule: blocks are the members of the outermost lists of modules (`nn.Sequential`, `nn.ModuleList`) that repeat a
class, or are a sequence with a tenth of the model's parameters. A sequence inside a sequence is taken apart. So a
decoder has one list, an encoder-decoder has two, a ResNet has its four stages, and a model that is itself a sequence
has all of its modules. Lists inside blocks, as of experts or heads, are part of these blocks. If there is no other
list, one with a single module counts: a model may call it often, as ALBERT does.
"""

from collections.abc import Iterator, Sequence

from torch import nn

from remat.errors import ProblemError
from remat.frameworks.torch.internals.fsdp import unsharded_class

__all__ = ["WHOLE", "find_blocks"]

WHOLE = "whole"

_SHARE = 0.1  # of the parameters: a sequence of different modules with less is not a list of blocks


def find_blocks(
    model: nn.Module, blocks: "str | Sequence[str | nn.Module] | None" = None, *, whole: bool = False
) -> dict[str, nn.Module]:
    """The blocks of a model by name, in the order of the model's lists; none if the model is planned as a whole.

    `blocks` has names of lists or of single modules, or modules; without it, the lists are searched for. If `whole`
    allows it, the model is planned as a whole for "whole" or the model itself, and if no lists are found.
    """
    if whole and (blocks == WHOLE or (isinstance(blocks, Sequence) and list(blocks) == [model])):
        return {}
    if blocks is None:
        parameters = max(1, _parameters(model))
        found = dict(_found(model, "", parameters)) or dict(_found(model, "", parameters, least=1))
        if not found and not whole:
            children = ", ".join(name for name, _ in model.named_children()) or "none"
            raise ProblemError(
                f"no list of blocks was found in {type(model).__name__} (children: {children}): a ModuleList or "
                'Sequential of repeated modules. Name what may be recomputed: blocks="path.to.the.list", or '
                'blocks=["encoder", "decoder"] for single modules'
            )
        return found
    named = dict(model.named_modules(remove_duplicate=False))
    names = {id(module): name for name, module in reversed(named.items())}
    found = {}
    for each in [blocks] if isinstance(blocks, str) else blocks:
        name = each if isinstance(each, str) else names.get(id(each))
        if name is None or name not in named:
            lists = [name for name, module in named.items() if isinstance(module, nn.ModuleList | nn.Sequential)]
            raise ProblemError(
                f"blocks: {each!r:.60} is not a module of {type(model).__name__}; its lists of modules are "
                f"{', '.join(lists[:8]) or 'none'}"
            )
        module = named[name]
        found.update(_flat(module, name) if isinstance(module, nn.ModuleList | nn.Sequential) else [(name, module)])
    return _disjoint(found)


def _found(module: nn.Module, path: str, parameters: int, least: int = 2) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) >= least:
        classes = [type(child) for child in module]
        repeats = len(set(classes)) < len(classes) or (least == 1 and isinstance(module, nn.ModuleList))
        if repeats or (isinstance(module, nn.Sequential) and _parameters(module) >= _SHARE * parameters):
            yield from _flat(module, path)
            return
    for name, child in module.named_children():
        yield from _found(child, f"{path}.{name}" if path else name, parameters, least)


def _flat(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The members of a list, with lists inside it taken apart."""
    for name, child in module.named_children():
        at = f"{path}.{name}" if path else name
        if unsharded_class(child) in (nn.Sequential, nn.ModuleList) and any(True for _ in child.children()):
            yield from _flat(child, at)
        else:
            yield at, child


def _disjoint(blocks: dict[str, nn.Module]) -> dict[str, nn.Module]:
    inside: dict[int, str] = {}
    for name, block in blocks.items():
        for module in block.modules():
            other = inside.setdefault(id(module), name)
            if other != name and module is not blocks[other]:
                raise ProblemError(f"blocks: {name!r} and {other!r} overlap; name those that contain no others")
    return blocks


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
