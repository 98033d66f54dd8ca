"""Lazy modules in a loop: they create their parameters before the loop begins, as its first step would.

The rule: the first step is run once without gradients and in eval mode, which draws the initial parameters and, in
PyTorch's own modules, nothing else: no dropout, no statistics. All other contents are restored. So recomputed steps
find the parameters in place.

What it can miss: a step that draws numbers in eval mode too then draws others than in the plain loop. The cost is one
step, in the first loop only.
"""

from collections.abc import Callable
from typing import Any

import torch

from remat.execute.python_state import PythonState
from remat.frameworks.torch.internals.modules import OWN, is_uninitialized
from remat.frameworks.torch.replay.tensor_reach import TorchReach

__all__ = ["initialize_lazy_modules"]


def initialize_lazy_modules(reach: TorchReach, first_step: Callable[[], Any]) -> None:
    """Run the first step for the parameters that it creates."""
    modules = [each for each in reach.containers if isinstance(each, dict) and each.keys() >= OWN]  # their attributes
    lazy = [
        each
        for each in modules
        if any(map(is_uninitialized, (*each["_parameters"].values(), *each["_buffers"].values())))
    ]
    own = {id(part) for attributes in lazy for part in (attributes, *attributes.values())}
    contents = PythonState([each for each in (*reach.containers, *reach.registries) if id(each) not in own])
    before, flags = contents.get(), [attributes["training"] for attributes in modules]
    try:
        for attributes in modules:
            attributes["training"] = False
        with torch.no_grad():
            first_step()
    finally:
        for attributes, training in zip(modules, flags, strict=True):
            attributes["training"] = training
        contents.set(before)
