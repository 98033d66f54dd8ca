"""A checkpointed module, such as an equinox module, which the backward recomputes.

It is a pytree like the module itself, so that gradients flow to its parameters.
"""

from typing import Any

from jax.tree_util import GetAttrKey, register_pytree_with_keys_class

from remat.frameworks.jax.segments.checkpoint import checkpoint
from remat.profiling.profiler import recorded_call
from remat.pytree import PyTree
from remat.segments import CheckpointOptions

__all__ = ["CheckpointedModule", "checkpoint_module"]


@register_pytree_with_keys_class
class CheckpointedModule:
    """A callable pytree with the module's attributes; each call is a segment."""

    def __init__(self, module: Any, options: CheckpointOptions) -> None:
        # Written to __dict__, because assignment goes to the module.
        self.__dict__["_module"], self.__dict__["_options"] = module, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns; the backward recomputes its residuals."""
        with recorded_call("drop", type(self._module).__call__) as call:
            return checkpoint(self._module, args, kwargs, self._options, call)

    def tree_flatten_with_keys(self) -> tuple[Any, CheckpointOptions]:
        """The module is the only child."""
        return ((GetAttrKey("_module"), self._module),), self._options

    @classmethod
    def tree_unflatten(cls, options: CheckpointOptions, children: PyTree) -> "CheckpointedModule":
        """A checkpointed module around another module."""
        return cls(children[0], options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_module" not in self.__dict__:  # such as __deepcopy__, or during a copy
            raise AttributeError(name)
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: PyTree) -> None:
        setattr(self._module, name, value)  # equinox modules refuse

    def __getitem__(self, key: Any) -> Any:
        return self._module[key]

    def __repr__(self) -> str:
        return f"drop({self._module!r})"


def checkpoint_module(module: Any, options: CheckpointOptions) -> CheckpointedModule:
    """The module, wrapped so that the backward recomputes it."""
    return CheckpointedModule(module, options)
